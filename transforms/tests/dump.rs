use transforms::*;
fn show(scope: &sdfg::Scope, depth: usize) {
    let pad = "  ".repeat(depth);
    println!(
        "{pad}map {} [{}]",
        scope.map.label,
        scope.map.indices.iter().map(|i| format!("{}:{:?}", i.name, i.kind)).collect::<Vec<_>>().join(",")
    );
    for i in &scope.body {
        match i {
            sdfg::Item::Scope(s) => show(s, depth + 1),
            sdfg::Item::Tasklet(c) => println!(
                "{pad}  {} <- {}",
                c.writes.iter().map(|m| m.1.to_string()).collect::<Vec<_>>().join(" & "),
                c.reads.iter().map(|m| m.1.to_string()).collect::<Vec<_>>().join(" ; ")
            ),
            _ => {}
        }
    }
}
#[test]
fn dump() {
    let seed: u64 = std::env::var("SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let p = sdfg::random::program(seed);
    let o = p.containers.values().find(|c| c.role == sdfg::Role::Output).unwrap().name.clone();
    let p = differentiate(&p, &transforms::differentiate::Options { upstream: Some(o), ..Default::default() }).unwrap_or(p);
    let e = fixpoint(&p, &[&Expand], &Options::default()).unwrap().program;
    let mut q = e.clone();
    let run = sdfg::interpret::Run { seed: 5, step: 2, dropout: true };
    let ins: sdfg::interpret::Tensors = p.containers.values().filter(|c| matches!(c.role, sdfg::Role::Input | sdfg::Role::Parameter)).map(|c| { let sh = p.shape_of(&c.name).unwrap(); (c.name.clone(), ndarray::ArrayD::from_shape_vec(ndarray::IxDyn(&sh), sdfg::random::tensor(seed, &c.name, sh.iter().product())).unwrap()) }).collect();
    loop {
        let f = fixpoint(&q, &[&Fusion::default()], &Options { step_limit: 1, verify: None }).unwrap();
        if f.steps.is_empty() { break }
        let a = sdfg::interpret::interpret(&q, &ins, &run).unwrap();
        let b = sdfg::interpret::interpret(&f.program, &ins, &run).unwrap();
        let bad: Vec<_> = a.iter().filter(|(n, t)| b.get(*n).is_some_and(|u| t.iter().zip(u).any(|(x, y)| !((x - y).abs() < 1e-9 || (x.is_nan() && y.is_nan()))))).map(|(n, _)| n).collect();
        if !bad.is_empty() {
            println!("## {} {bad:?}", f.steps[0].summary);
            for x in [&q, &f.program] { println!("---"); for (_, n, u) in x.units() { if let sdfg::Unit::Scope(s) = &u { println!("{n}"); show(s, 0); } } }
            break;
        }
        q = f.program;
    }
}
