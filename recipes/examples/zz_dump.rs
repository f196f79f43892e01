use kernels::emit::cuda::Chip;
use kernels::template::{cuda_source, cuda_space};
use kernels::KernelSpec;
use recipes::pipeline::programs::programs_on;
use std::path::Path;
fn main() {
    let recipe = std::env::args().nth(1).unwrap();
    let code = std::env::args().nth(2);
    let nth: u64 = std::env::args().nth(3).map_or(0, |n| n.parse().unwrap());
    let over = recipes::load::Overrides { dtype: Some(sdfg::Dtype::Bf16), narrow: true, ..Default::default() };
    let model = recipes::load::load_with(Path::new(&recipe), &over).unwrap();
    let mut extra = vec![];
    if let Ok(names) = std::env::var("ONLY") {
        let names: Vec<String> = names.split(',').map(String::from).collect();
        let weights: Vec<String> = std::env::var("WEIGHTS").map(|w| w.split(',').map(String::from).collect()).unwrap_or_default();
        let v = recipes::pipeline::programs::Composing::on(&model, &weights, false, recipes::pipeline::programs::Kernels::Swept).unwrap().composed(&|_| true).unwrap();
        for c in &v.compositions { println!("COMPOSED {} of {:?}", c.name, c.members); }
        for s in &v.refusals { eprintln!("REF {s:?}"); }
        if std::env::var("LIST").is_ok() { for (_, _, u) in v.program.units() { println!("{}", u.name()); } return; }
        extra.push(v);
    }
    let programs = if !extra.is_empty() { recipes::pipeline::programs::Programs { variants: extra, operators: model.program.clone(), unfused: model.program.clone(), saved: vec![] } } else { programs_on(&model, false, Some(kernels::contraction::cublaslt::Fused::has)).unwrap() };
    let mut seen = std::collections::BTreeSet::new();
    for v in &programs.variants {
        for (_, _, unit) in v.program.units() {
            let Ok(spec) = KernelSpec::new(&v.program, &unit) else { continue };
            if !seen.insert(spec.key()) { continue }
            if !matches!(unit, sdfg::Unit::Scope(_) | sdfg::Unit::Nested(_)) { continue }
            let Ok(space) = cuda_space(&spec, Chip::HOPPER) else { continue };
            if code.as_ref().is_some_and(|c| *c != spec.name) { continue }
            let n = (0..if code.is_some() { 20 } else { 20000u64 }).map(|n| n * 7919 % space.count()).min_by(|a, b| space.promise(*a).total_cmp(&space.promise(*b))).unwrap();
            let config = space.config(n);
            if config.knobs.get("tile").is_none() { continue }
            let mut config = if nth > 0 { space.config(nth) } else { config };
            for arg in std::env::args().skip(4) {
                let (k, v) = arg.split_once('=').unwrap();
                if let Some(l) = k.strip_prefix("L") { config.layouts.insert(l.to_string(), sdfg::Layout::of(&v.split(',').map(String::from).collect::<Vec<_>>())); } else { config.knobs = config.knobs.clone().with(k, v); }
            }
            match &code {
                None => println!("{} | {} | {} configs | promise {:.3e} | {config}", v.name, spec.name, space.count(), space.promise(n)),
                Some(name) if spec.name == *name => {
                    println!("{config}\n{:#?}", kernels::tiles::lower(&spec, &config).map(|n| n.groups.iter().map(|g| format!("{} product {} last {} loops {:?}\n{}", g.statements.len(), g.product, g.last, g.loops.iter().map(|l| format!("{}:{}", l.index, l.count)).collect::<Vec<_>>(), g.statements.iter().map(|s| format!("   {} {:?}{:?} = {:?} of {:?} ({:?})", s.name, s.write.data, s.write.subscripts.iter().map(|x|x.to_string()).collect::<Vec<_>>(), s.code, s.reads.iter().map(|(c, e)| format!("{c}:{}{:?}", e.data, e.subscripts.iter().map(|x|x.to_string()).collect::<Vec<_>>())).collect::<Vec<_>>(), s.combine)).collect::<Vec<_>>().join("\n"))).collect::<Vec<_>>()));
                    let s = cuda_source(&spec, &config, Chip::HOPPER).unwrap();
                    println!("shared {} threads {} grid {} scratch {}", s.shared, s.threads, s.grid, s.scratch);
                    println!("{}", s.text); return;
                }
                _ => {}
            }
        }
    }
}
