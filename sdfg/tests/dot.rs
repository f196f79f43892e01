//! The Graphviz form: every node and edge once, volumes in bytes, balanced brackets.

use proptest::prelude::*;
use sdfg::dot::dot;
use sdfg::random;
use sdfg::text::parse;

#[test]
fn a_small_program_draws_its_scopes_volumes_and_classes() {
    let program = parse(
        "program \"a \\\"b\\\"\" {
           sizes h=1000, k=4
           dims h, k, m
           input x[h, k] f32
           transient t[] f64 register
           output y[m] f32
           state s0 forward {
             n0 = access x
             n1 = map rows [h=0:h, k=0:k:2]
             n2 in n1 = tasklet max { out = exp(x) }
             n3 in n1 = access t
             n4 = exit n1
             n5 = library y forward [h, k, m] (a[h, k], b[h, k]) -> (out[m]) contraction scale 1.0
             n6 = access y
             n7 = nested q [] program q { state s0 a { n0 = access t } }
             e0 = n0 -> n1:IN_x moves x[0:h, 0:k:2]
             e1 = n1:OUT_x -> n2:x moves x[h, k]
             e2 = n2:out -> n3 moves t[] wcr max dynamic
             e3 = n5:out -> n6 moves y[0:m]
           }
         }",
    )
    .unwrap();
    let drawing = dot(&program);
    for part in [
        "digraph \"a \\\"b\\\"\" {",
        "\"s0_n0\" [label=\"x\", shape=ellipse, fillcolor=\"#dddddd\"];",
        "\"s0_n1\" [label=\"h=0:h, k=0:k:2\", shape=trapezium, fillcolor=\"#ffcc99\"];",
        "\"s0_n2\" [label=\"max\\nout = exp(x)\", shape=box];",
        "\"s0_n3\" [label=\"t\", shape=ellipse, fillcolor=\"white\", style=\"filled,dashed\"];",
        "\"s0_n5\" [label=\"y\", shape=box, fillcolor=\"#a6c8ff\"];",
        "\"s0_n7_s0_n0\" [label=\"t\"",
        "\"s0_n0\" -> \"s0_n1\" [label=\"x[0:h, 0:k:2]\\n8.0 kB\"];",
        "\"s0_n1\" -> \"s0_n2\" [label=\"x[h, k]\\n4 B\"];",
        "\"s0_n2\" -> \"s0_n3\" [label=\"t[] max\\n≤ 8 B\"];",
        "\"s0_n5\" -> \"s0_n6\" [label=\"y[0:m]\\nm elements\"];",
    ] {
        assert!(drawing.contains(part), "{part}\nis not in\n{drawing}");
    }
}

#[test]
fn transitions_run_from_border_to_border() {
    let program = parse("program p { state s0 a { } state s1 b { } s0 -> s1 }").unwrap();
    let drawing = dot(&program);
    assert!(drawing.contains("\"s0_\" -> \"s1_\" [style=bold, ltail=cluster0, lhead=cluster1, label=\"\"];"), "{drawing}");
}

proptest! {
    #[test]
    fn every_node_and_edge_is_drawn_once(seed in any::<u64>()) {
        let program = random::program(seed);
        let drawing = dot(&program);
        let (_, state) = program.states().next().unwrap();
        for (node, _) in state.nodes() {
            prop_assert_eq!(drawing.matches(&format!("\"s0_{node}\" [")).count() - drawing.matches(&format!("-> \"s0_{node}\" [")).count(), 1);
        }
        prop_assert_eq!(drawing.matches(" -> \"").count(), state.edges().count());
        prop_assert_eq!(drawing.matches('{').count(), drawing.matches('}').count());
    }
}
