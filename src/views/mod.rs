//! What others see of a snapshot; nothing here changes anything, and nothing flows back.
//!
//! [`families`] names and defines the metrics, [`selection`] decides whose series exist, [`prometheus`] writes both
//! down. Facts are made in the fold: a view that needs a number asks for a new fact there.

pub mod families;
pub mod prometheus;
pub mod selection;
