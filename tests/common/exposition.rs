//! A strict reader of both exposition formats, for tests only. It refuses more than Prometheus does: families must
//! not be empty, labels of one family must be the same on every sample, bounds must have one spelling.

use std::collections::{BTreeMap, BTreeSet};

/// Label names that would clash with target labels or with Prometheus itself.
const RESERVED: [&str; 8] = ["instance", "job", "quantile", "type", "stage", "service", "env", "owner"];

/// The one family with a label `type`: it is about the exporter, and its values are the words of the event schema's
/// field of that name.
const EVENTS_BY_TYPE: &str = "agent_session_exporter_events_total";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Text,
    OpenMetrics,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    /// As samples are queried: a counter's name has its suffix in both dialects.
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
    pub(crate) exemplar: Option<Exemplar>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Exemplar {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
    pub(crate) time: f64,
}

impl Sample {
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

impl Family {
    /// The values by all labels, for tests that look one up.
    pub(crate) fn value(&self, labels: &[(&str, &str)]) -> Option<f64> {
        let fits = |s: &&Sample| labels.iter().all(|(name, value)| s.label(name) == *value);
        let mut found = self.samples.iter().filter(fits);
        let value = found.next()?.value;
        assert!(found.next().is_none(), "{labels:?} is not one series of {}", self.name);
        Some(value)
    }
}

/// Reads a body, or says what is wrong with it.
pub(crate) fn parse(body: &[u8], dialect: Dialect) -> Result<Vec<Family>, String> {
    let text = std::str::from_utf8(body).map_err(|e| e.to_string())?;
    let mut text = text.strip_suffix('\n').ok_or("the last line has no end")?;
    if dialect == Dialect::OpenMetrics {
        text = text.strip_suffix("# EOF").ok_or("no # EOF")?;
        text = text.strip_suffix('\n').unwrap_or(text);
    }
    let mut families: Vec<Family> = Vec::new();
    let mut seen = BTreeSet::new();
    for line in text.split('\n').filter(|l| !text.is_empty() || !l.is_empty()) {
        let wrong = |what: &str| Err(format!("{what}: {line}"));
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let Some((name, help)) = rest.split_once(' ') else { return wrong("help without text") };
            if help.contains(['\\', '"']) {
                return wrong("help that would need escapes");
            }
            families.push(Family { name: name.to_owned(), help: help.to_owned(), ..Family::default() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let Some((name, kind)) = rest.split_once(' ') else { return wrong("type without a word") };
            let Some(family) = families.last_mut().filter(|f| f.name == name && f.kind.is_empty()) else {
                return wrong("type of another family");
            };
            family.kind = kind.to_owned();
            if kind == "counter" && dialect == Dialect::OpenMetrics {
                if name.ends_with("_total") {
                    return wrong("counter family with its suffix");
                }
                family.name.push_str("_total");
            }
        } else if line.starts_with('#') || line.is_empty() {
            return wrong("neither sample nor metadata");
        } else {
            let (line, exemplar) = match line.split_once(" # ") {
                Some((line, exemplar)) if dialect == Dialect::OpenMetrics => (line, Some(exemplar)),
                Some(_) => return wrong("an exemplar in text"),
                None => (line, None),
            };
            let mut sample = sample(line)?;
            sample.exemplar = exemplar.map(|e| read_exemplar(e, &sample)).transpose()?;
            let Some(family) = families.last_mut().filter(|f| !f.kind.is_empty()) else {
                return wrong("sample before its metadata");
            };
            belongs(family, &sample).map_err(|e| format!("{e}: {line}"))?;
            if !seen.insert((sample.name.clone(), sample.labels.clone())) {
                return wrong("the same series twice");
            }
            family.samples.push(sample);
        }
    }
    families.iter().try_for_each(complete)?;
    let mut names = BTreeSet::new();
    for family in &families {
        // A family and a counter's family must not have one name in OpenMetrics.
        let bare = family.name.strip_suffix("_total").unwrap_or(&family.name);
        if !names.insert(bare) {
            return Err(format!("{bare} is no name of its own"));
        }
    }
    if let Some(silent) = families.iter().find(|f| f.help.trim().is_empty()) {
        return Err(format!("help without text: {}", silent.name));
    }
    Ok(families)
}

fn sample(line: &str) -> Result<Sample, String> {
    let wrong = |what: &str| format!("{what}: {line}");
    let name_end = line.find(['{', ' ']).ok_or_else(|| wrong("no value"))?;
    let (name, mut rest) = line.split_at(name_end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or_else(|| wrong("label without value"))?;
            let first_ok = label.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            if !first_ok || !label.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                return Err(wrong("label name"));
            }
            let (value, after) = unescape(after).ok_or_else(|| wrong("label value"))?;
            let of_our_own = label == "type" && name == EVENTS_BY_TYPE;
            if labels.insert(label.to_owned(), value).is_some() || RESERVED.contains(&label) && !of_our_own {
                return Err(wrong("label twice or reserved"));
            }
            if let Some(after) = after.strip_prefix('}') {
                rest = after;
                break;
            }
            rest = after.strip_prefix(',').ok_or_else(|| wrong("labels without a comma"))?;
        }
    }
    let value = rest.strip_prefix(' ').ok_or_else(|| wrong("no blank before the value"))?;
    if value.contains(' ') {
        return Err(wrong("something behind the value"));
    }
    let value = value.parse().map_err(|_| wrong("not a number"))?;
    Ok(Sample { name: name.to_owned(), labels, value, exemplar: None })
}

/// What stands behind ` # ` of a bucket: labels of 128 characters at most, a value within the bound, a time.
fn read_exemplar(text: &str, of: &Sample) -> Result<Exemplar, String> {
    let wrong = |what: &str| format!("{what}: {text}");
    // The form is that of a sample without a name, with a time behind it.
    let (rest, time) = text.rsplit_once(' ').ok_or_else(|| wrong("no time"))?;
    let Sample { labels, value, .. } = sample(&format!("x{rest}"))?;
    let time: f64 = time.parse().map_err(|_| wrong("time"))?;
    let length: usize = labels.iter().map(|(n, v)| n.chars().count() + v.chars().count()).sum();
    let bound: f64 = of.label("le").parse().map_err(|_| wrong("not on a bucket"))?;
    if !of.name.ends_with("_bucket") || length > 128 || labels.is_empty() || value > bound {
        return Err(wrong("not an exemplar of this bucket"));
    }
    Ok(Exemplar { labels, value, time })
}

/// The value up to its closing quote, and what follows.
fn unescape(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c @ ('\\' | '"') => c,
                _ => return None,
            }),
            c => value.push(c),
        }
    }
    None
}

fn belongs(family: &Family, sample: &Sample) -> Result<(), String> {
    let suffix = sample.name.strip_prefix(family.name.as_str()).ok_or("another family's sample")?;
    let fits = match family.kind.as_str() {
        "gauge" => suffix.is_empty() && !family.name.ends_with("_total"),
        "counter" => suffix.is_empty() && family.name.ends_with("_total") && sample.value >= 0.0,
        "histogram" => matches!(suffix, "_bucket" | "_sum" | "_count"),
        _ => false,
    };
    if !fits || sample.labels.contains_key("le") != (suffix == "_bucket") {
        return Err("not a sample of this type".to_owned());
    }
    Ok(())
}

/// A family has samples, all with the same labels; the buckets of a histogram are in order and add up.
fn complete(family: &Family) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{}: {what}", family.name));
    let names = |s: &Sample| s.labels.keys().filter(|l| *l != "le").cloned().collect::<Vec<_>>();
    let Some(first) = family.samples.first() else { return wrong("no samples") };
    if family.samples.iter().any(|s| names(s) != names(first)) {
        return wrong("labels differ between samples");
    }
    if family.kind != "histogram" {
        return Ok(());
    }
    let mut last: Option<(f64, f64)> = None;
    for sample in &family.samples {
        if sample.name.ends_with("_bucket") {
            let le = sample.label("le");
            let Ok(bound) = le.parse::<f64>() else { return wrong("bound") };
            let rises = last.is_none_or(|(b, n)| bound > b && sample.value >= n);
            if !rises || (le != "+Inf" && !le.contains('.')) {
                return wrong("buckets out of order, or a bound without its point");
            }
            last = Some((bound, sample.value));
        } else if sample.name.ends_with("_count") {
            if last != Some((f64::INFINITY, sample.value)) {
                return wrong("the last bucket is not the count");
            }
            last = None;
        }
    }
    Ok(())
}
