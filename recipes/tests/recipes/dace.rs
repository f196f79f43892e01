//! Programs as SDFGs of DaCe's: stored files that DaCe has run (`bench/dace.sh`), well-formed graphs of all recipes, and what is refused.

use recipes::dace::write;
use recipes::load::{Overrides, load, load_str};
use recipes::pipeline::oracle::operators::operators;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Whether a memlet moves one element.
fn is_point(memlet: &Value) -> bool {
    memlet["subset"]["ranges"].as_array().is_some_and(|ranges| ranges.iter().all(|range| range["start"] == range["end"]))
}

/// Every edge joins connectors that its nodes have, every memlet moves an array that there is, tasklets pick elements of what is more than
/// one and of nothing else, and no state has a cycle.
fn check(sdfg: &Value) -> Result<usize, Failure> {
    let arrays = sdfg["attributes"]["_arrays"].as_object().ok_or("arrays")?;
    let states = sdfg["nodes"].as_array().ok_or("states")?;
    for state in states {
        let nodes = state["nodes"].as_array().ok_or("nodes")?;
        let mut after: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut waiting = vec![0; nodes.len()];
        for (n, node) in nodes.iter().enumerate() {
            assert_eq!(node["id"], n);
            if text(node, "type") == "AccessNode" {
                assert!(arrays.contains_key(text(&node["attributes"], "data")), "{node}");
            }
        }
        for edge in state["edges"].as_array().ok_or("edges")? {
            let (from, to): (usize, usize) = (text(edge, "src").parse()?, text(edge, "dst").parse()?);
            let has = |node: &Value, side: &str, connector: &str| node["attributes"][side].get(connector).is_some();
            for (node, side, connector) in
                [(&nodes[from], "out_connectors", text(edge, "src_connector")), (&nodes[to], "in_connectors", text(edge, "dst_connector"))]
            {
                assert!(connector.is_empty() || has(node, side, connector), "{connector} of {node}");
            }
            let memlet = &edge["attributes"]["data"]["attributes"];
            if let Some(data) = memlet["data"].as_str() {
                let (rank, shape) = (&memlet["subset"]["ranges"], &arrays[data]["attributes"]["shape"]);
                assert_eq!(rank.as_array().map(Vec::len), shape.as_array().map(Vec::len), "{memlet}");
            }
            if text(&nodes[to], "type") == "Tasklet" && memlet["data"].is_string() {
                let code = text(&nodes[to]["attributes"]["code"], "string_data");
                let picks = code.contains(&format!("{}[", text(edge, "dst_connector")));
                assert!(is_point(memlet) || picks, "`{code}` is given all of {memlet} as one number");
                assert!(!is_point(memlet) || !picks, "`{code}` picks of one number, {memlet}");
            }
            after.entry(from).or_default().push(to);
            waiting[to] += 1;
        }
        let mut ready: Vec<usize> = (0..nodes.len()).filter(|n| waiting[*n] == 0).collect();
        let mut seen = 0;
        while let Some(n) = ready.pop() {
            seen += 1;
            for next in after.get(&n).into_iter().flatten() {
                waiting[*next] -= 1;
                if waiting[*next] == 0 {
                    ready.push(*next);
                }
            }
        }
        assert_eq!(seen, nodes.len(), "{} has a cycle", text(state, "label"));
    }
    let known: BTreeSet<String> = (0..states.len()).map(|n| n.to_string()).collect();
    let edges = sdfg["edges"].as_array().ok_or("edges")?;
    assert!(edges.iter().all(|e| known.contains(text(e, "src")) && known.contains(text(e, "dst"))));
    Ok(states.len())
}

#[test]
fn every_recipe_is_written() -> Result<(), Failure> {
    let mut written = 0;
    for entry in std::fs::read_dir(env!("CARGO_MANIFEST_DIR"))?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "yaml") {
            let recipe = load(&path, Overrides { no_dropout: true, ..Overrides::default() })?;
            let states = check(&write(&operators(&recipe)?.0)?)?;
            assert!(states > 5, "{}", path.display());
            written += 1;
        }
    }
    assert!(written > 30, "{written}");
    Ok(())
}

/// A loop with a state, a row that was computed, a reduction, windows and joins: the file is one that both versions of DaCe have run.
#[test]
fn the_stored_program_is_what_dace_has_run() -> Result<(), Failure> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/dace");
    let recipe = load(&folder.join("decoder.yaml"), Overrides::default())?;
    let made = write(&operators(&recipe)?.0)?;
    check(&made)?;
    let file = folder.join("decoder.sdfg");
    if std::env::var_os("MEMLET_BLESS").is_some() {
        std::fs::write(&file, serde_json::to_string_pretty(&made)? + "\n")?;
    }
    let stored: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    assert_eq!(made, stored, "run bench/dace.sh recipes/tests/data/dace/decoder.yaml, then MEMLET_BLESS=1");
    Ok(())
}

#[test]
fn what_dace_lacks_is_refused_with_its_name() -> Result<(), Failure> {
    let text = |more: &str, step: &str| format!("model: m\ndims: {{b: 3, i: 4}}\n{more}inputs: {{x: [b, i]}}\nsteps:\n  - \"{step}\"\n");
    for (text, said) in [
        (text("", "y[b,i] = dropout(x, rate: 0.1)"), "draws a dropout's mask"),
        (text("dtype: bf16\n", "y[b,i] = x + 1"), "is stored in bf16, which DaCe does not have"),
    ] {
        let error = write(&operators(&load_str("m.yaml", &text, &[])?)?.0).expect_err(said).to_string();
        assert!(error.contains(said), "{error}");
    }
    Ok(())
}
