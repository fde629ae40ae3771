//! The worked cases of `data/histories.json`, by an independent implementation, and the paper's own figure.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ccsd_profile::{ContextId, ContextTable, CostCentreId, History};
use serde_json::Value;

fn function(name: &str) -> CostCentreId {
    let bytes = name.to_ascii_uppercase();
    CostCentreId::new(bytes.bytes().fold(0, |id, byte| id * 256 + u32::from(byte)))
}

fn text(history: &History) -> String {
    history.text(|id, marked| {
        let bytes = id.get().to_be_bytes();
        let name: String = bytes.iter().filter(|&&byte| byte != 0).map(|&byte| char::from(byte)).collect();
        if marked { name } else { name.to_ascii_lowercase() }
    })
}

fn cases() -> Vec<(Vec<CostCentreId>, String)> {
    let data: Value = serde_json::from_str(include_str!("data/histories.json")).unwrap();
    let cases = data["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 261);
    let stack = |case: &Value| match case["stack"].as_str() {
        Some(stack) => stack.split_whitespace().map(function).collect(),
        None => case["stack_rle"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|pair| {
                let group: Vec<_> = pair[0].as_str().unwrap().split_whitespace().map(function).collect();
                group.repeat(usize::try_from(pair[1].as_u64().unwrap()).unwrap())
            })
            .collect(),
    };
    cases.iter().map(|case| (stack(case), case["history"].as_str().unwrap().to_owned())).collect()
}

#[test]
fn every_case_by_the_definition() {
    for (stack, expected) in cases() {
        assert_eq!(text(&History::of(stack)), expected);
    }
}

#[test]
fn every_case_by_the_table_that_has_seen_all_before() {
    let mut table = ContextTable::new(1 << 24);
    for (stack, expected) in cases() {
        let context = stack.iter().fold(ContextId::ROOT, |context, &function| table.push(context, function));
        assert_eq!(text(&table.history(context)), expected);
    }
}

#[test]
fn items_of_the_papers_figure_2() {
    let history = History::of("M P Q R P".split(' ').map(function));
    let items: Vec<String> = history
        .items()
        .iter()
        .map(|item| {
            let name = |id: Option<CostCentreId>| id.map_or(String::new(), |id| char::from(id.get() as u8).to_string());
            format!("{}[{}]{}", name(item.caller), name(Some(item.function)), name(item.callee))
        })
        .collect();
    assert_eq!(items, ["[M]P", "P[Q]R", "Q[R]P", "R[P]"]);
    assert_eq!(text(&history), "M p Q R P");
}
