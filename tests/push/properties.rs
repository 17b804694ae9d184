//! What holds for any input: the schema and the decoder agree, nothing leaks, nothing panics.

use std::sync::{Arc, LazyLock};

use agent_session_exporter::event::reduce::Runners;
use agent_session_exporter::event::{Reducer, SCHEMA_JSON, Timestamp};
use agent_session_exporter::sources::push::{Admission, Decoder, Options};
use agent_session_exporter::telemetry::Telemetry;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const MARKER: &str = "MARKER secret\" \\ \u{e9} 17";

static COMPILED: LazyLock<(Value, jsonschema::Validator)> = LazyLock::new(|| {
    let root = schema();
    let validator = jsonschema::validator_for(&root).unwrap();
    (root, validator)
});

fn decoder() -> Decoder {
    let reducer = Arc::new(Reducer::new([5; 16], Runners::default()));
    let admission = Arc::new(Admission::default());
    Decoder::new(reducer, Arc::new(Telemetry::new()), admission, &Options::default())
}

fn now() -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000)
}

fn schema() -> Value {
    serde_json::from_str(SCHEMA_JSON).unwrap()
}

/// A value that fits a schema, chosen by `pick`.
fn fitting(schema: &Value, root: &Value, pick: &mut impl FnMut(usize) -> usize) -> Value {
    if let Some(name) = schema["$ref"].as_str() {
        return fitting(&root["$defs"][name.rsplit('/').next().unwrap()], root, pick);
    }
    if let Some(words) = schema["enum"].as_array() {
        return words[pick(words.len())].clone();
    }
    if let Some(forms) = schema["oneOf"].as_array() {
        return fitting(&forms[pick(forms.len())], root, pick);
    }
    if let Some(only) = schema.get("const") {
        return only.clone();
    }
    match schema["type"].as_str() {
        Some("object") => fitting_object(schema, root, pick),
        Some("boolean") => json!(pick(2) == 1),
        Some("integer") => json!(pick(5_000)),
        Some("number") if schema["maximum"] == 1 => json!(0.25),
        Some("number") => json!(schema["minimum"].as_u64().unwrap_or(0) + pick(1_000_000) as u64),
        _ if schema["format"] == "date-time" => json!(format!("2026-02-{:02}T10:00:00Z", 1 + pick(28))),
        _ if schema["pattern"].as_str().is_some_and(|p| p.starts_with("^[0-9a-f]{2}-")) => {
            json!(format!("00-{:032x}-{:016x}-00", 1 + pick(9), 1 + pick(9)))
        }
        _ if schema.get("pattern").is_some() => json!(format!("bot_{}", pick(9))),
        _ => json!(["a", "é \"quoted\"\n", "src/main.rs", "x".repeat(300).as_str()][pick(4)]),
    }
}

fn fitting_object(schema: &Value, root: &Value, pick: &mut impl FnMut(usize) -> usize) -> Value {
    let mut object = Map::new();
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    for (name, part) in schema["properties"].as_object().into_iter().flatten() {
        if required.contains(&json!(name)) || pick(3) > 0 {
            object.insert(name.clone(), fitting(part, root, pick));
        }
    }
    Value::Object(object)
}

/// An event that fits the schema: the envelope's properties, then `data` by the rule of its type.
fn fitting_event(root: &Value, pick: &mut impl FnMut(usize) -> usize) -> Value {
    let rules = root["allOf"].as_array().unwrap();
    let rule = &rules[pick(rules.len())];
    let kinds = rule["if"]["properties"]["type"]["enum"].as_array().unwrap();
    let mut event = fitting_object(root, root, pick);
    event["type"] = kinds[pick(kinds.len())].clone();
    event["data"] = fitting(&rule["then"]["properties"]["data"], root, pick);
    event
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
        "[a-z_.]{1,20}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec(("[a-zA-Z]{1,10}", inner), 0..6)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_fits_the_schema_is_taken(picks in prop::collection::vec(any::<u16>(), 64)) {
        let (root, validator) = &*COMPILED;
        let mut next = 0;
        let mut pick = |n: usize| {
            next += 1;
            usize::from(picks[next % picks.len()]) % n
        };
        let event = fitting_event(root, &mut pick);
        prop_assert!(validator.is_valid(&event), "{}", event);
        let decoded = decoder().item(event.to_string().as_bytes(), now());
        prop_assert!(decoded.is_ok(), "{:?}: {}", decoded, event);
        let decoded = decoded.unwrap();
        prop_assert!(postcard::to_allocvec(&decoded).unwrap().len() < 8_000);
        let named = event["id"].as_str().is_some_and(|id| !id.is_empty());
        // A dated record of an orchestrator is one of a kind without a name.
        let record = event["type"].as_str().is_some_and(|kind| kind.starts_with("orchestrator."));
        let dated = record && event["data"].get("at").is_some();
        prop_assert_eq!(decoded.id.is_some(), named || dated);
    }

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decoder().item(&bytes, now());
        let _ = decoder().cloud_event(&bytes, now());
    }

    #[test]
    fn any_data_of_any_type_never_panics(data in json_value(), kind in any::<prop::sample::Index>(), field in any::<prop::sample::Index>()) {
        let root = schema();
        let examples = root["examples"].as_array().unwrap();
        let mut event = kind.get(examples).clone();
        // One field of an example takes any value, else all of `data` does.
        let names: Vec<String> =
            event["data"].as_object().into_iter().flat_map(|o| o.keys().cloned()).collect();
        if names.is_empty() {
            event["data"] = data;
        } else {
            event["data"][field.get(&names).as_str()] = data;
        }
        if let Ok(decoded) = decoder().item(event.to_string().as_bytes(), now()) {
            prop_assert!(postcard::to_allocvec(&decoded).unwrap().len() < 8_000);
        }
    }
}

#[test]
fn nothing_that_is_content_is_in_the_event() {
    let fields = [
        "target",
        "args",
        "error",
        "outputDigest",
        "subject",
        "taskId",
        "text",
        "prompt",
        "result",
        "command",
    ];
    let root = schema();
    for example in root["examples"].as_array().unwrap() {
        let mut event = example.clone();
        for field in fields {
            event["data"][field] = json!(MARKER);
        }
        event["data"]["args"] =
            json!({"command": MARKER, "path": MARKER, MARKER: [MARKER], "todos": [{"status": MARKER}]});
        event["projectId"] = json!(format!("/home/{MARKER}/shop"));
        event["prompt"] = json!(MARKER);
        event["traceparent"] = json!(MARKER);
        event["tracestate"] = json!(format!("a={MARKER}"));
        for kind in ["read", "shell", "todowrite"] {
            if event["type"] == "tool.started" {
                event["data"]["tool"] = json!(kind);
            }
            let decoded = decoder().item(event.to_string().as_bytes(), now());
            let decoded = decoded.unwrap_or_else(|reason| panic!("{reason:?}: {event}"));
            let kept = serde_json::to_string(&decoded).unwrap();
            assert!(!kept.contains("MARKER") && !kept.contains("secret"), "{kept}");
        }
    }
}

#[test]
fn invalid_text_and_depth_are_refused_without_recursion() {
    let deep = 500_000;
    for body in [
        format!("{{\"source\":{}{}}}", "[".repeat(deep), "]".repeat(deep)),
        format!("{{\"data\":{{\"kind\":{}{}}}}}", "{\"a\":".repeat(deep / 8), "}".repeat(deep / 8)),
        format!("{{\"data\":{{\"args\":{}{}}}}}", "[".repeat(deep), "]".repeat(deep)),
    ] {
        assert!(decoder().item(body.as_bytes(), now()).is_err());
    }
    assert!(decoder().item(b"{\"source\":\"\xff\"}", now()).is_err());
}
