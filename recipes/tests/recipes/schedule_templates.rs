//! Schedule templates of the kernels of recipes: what configurations mean, and which configurations mean a template.

use kernels::template::{ScheduleTemplate, TemplateError, TemplateOf, TemplateSpace};
use kernels::{KernelSpec, target};
use recipes::load::{Overrides, load};
use recipes::pipeline::variants::programs::programs;
use sdfg::config::KernelConfig;
use sdfg::{Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// The most fused program of a recipe, or another one, at some sizes.
fn program(name: &str, variant: Option<&str>, sizes: &[(&str, i64)]) -> Result<Sdfg, Failure> {
    let sizes = sizes.iter().map(|(dim, n)| (dim.to_string(), *n)).collect();
    let recipe = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml")), Overrides { sizes, ..Overrides::default() })?;
    let mut all = programs(&recipe, false)?;
    match variant {
        None => Ok(all.variants.remove(0).program),
        Some(_) => Ok(all.unfused),
    }
}

fn kernel(program: &Sdfg, name: &str) -> Result<KernelSpec, Failure> {
    let units = program.units();
    let unit = units.iter().find(|(_, _, unit)| unit.name() == name).ok_or_else(|| format!("there is no kernel {name}"))?;
    Ok(KernelSpec::new(program, &unit.2)?)
}

/// What the templates of a program's kernels are like.
#[derive(Default)]
struct Seen {
    kernels: usize,
    templates: BTreeSet<String>,
    without: u64,
}

/// Checks that the template of a configuration is found again among those of its kernel, that each of these is found by its text, and that
/// the configurations that are found mean it. The configuration lies `at` so many hundredths of a kernel's space.
fn found_again(target: &str, program: &Sdfg, at: u64) -> Result<Seen, Failure> {
    let target = target::TargetInfo::find(target).ok_or("there is no such target")?;
    let mut seen = Seen::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(program, &unit)?;
        let library = || (target.code)(&spec, &KernelConfig::default()).is_ok_and(|code| code.is_none());
        if matches!(unit, Unit::Nested(_)) || (target.id != "cpu" && library()) {
            continue;
        }
        let space = (target.generated)(&spec)?;
        // No multiple of what knobs there are, so that all of them change.
        let numbers = (0..64).map(|n| (space.count() / 100 * at + 7 * n) % space.count());
        let mut meant = numbers.map(|n| space.config(n)).filter_map(|c| Some(((target.template)(&spec, &c).ok()??, c)));
        let Some((template, config)) = meant.next() else { continue };
        let templates = TemplateSpace::new(&spec, &*space, (&config, &config.layouts), target.template)?;
        assert!(templates.templates.iter().any(|t| t.template == template), "{template} of `{}`", spec.name);
        let texts: BTreeSet<String> = templates.templates.iter().map(|t| t.template.to_string()).collect();
        assert_eq!(texts.len(), templates.templates.len(), "a template of `{}` is listed twice", spec.name);
        let seen_outside: Vec<&str> = templates.operators().operators.iter().filter(|o| o.is_global).map(|o| o.operator.as_str()).collect();
        for listed in &templates.templates {
            // What other kernels see is written to memory, whatever the configuration.
            let has = |operator: &&str| listed.template.schedules.iter().any(|s| s.operator == **operator);
            assert!(seen_outside.iter().all(has), "{} of `{}` lacks some of {seen_outside:?}", listed.template, spec.name);
            let asked: ScheduleTemplate = listed.template.to_string().parse()?;
            assert_eq!(asked, listed.template);
            let found = templates.find(&asked, None)?;
            assert_eq!(found.template, asked);
            assert_eq!((target.template)(&spec, &found.config)?.as_ref(), Some(&asked), "`{}` under {}", spec.name, found.config);
            // Launch parameters need not be given.
            let open = ScheduleTemplate { cta_num: None, cta_size: None, ..asked.clone() };
            assert_eq!(templates.find(&open, None)?.template.schedules, asked.schedules);
        }
        // The configuration itself needs no relayout, so what is found needs none either, if all were looked at.
        let found = templates.find(&template, None)?;
        assert!(found.relayouts.is_empty() || templates.looked_at < templates.all, "{} for {template}", found.config);
        let counted: u64 = templates.templates.iter().map(|t| t.configurations).sum();
        assert!(counted + templates.without + templates.refused <= templates.looked_at + 1, "`{}`", spec.name);
        seen.without += templates.without;
        seen.templates.extend(texts);
        seen.kernels += 1;
    }
    Ok(seen)
}

#[test]
fn templates_of_maps_are_found_again_on_cores() -> Result<(), Failure> {
    let program = program("softmax", None, &[("b", 2), ("j", 64)])?;
    for at in [0, 37] {
        let seen = found_again("cpu", &program, at)?;
        assert!(seen.kernels >= 2 && seen.templates.len() > 4, "{:#?}", seen.templates);
        // Rows of a softmax wait in a worker's scratch memory, where vectors run along them.
        assert!(seen.templates.iter().any(|t| t.contains("WARP]S; ")), "{:#?}", seen.templates);
    }
    Ok(())
}

#[test]
fn templates_of_products_are_found_again_on_cores() -> Result<(), Failure> {
    let seen = found_again("cpu", &program("mlp", None, &[])?, 0)?;
    assert!(seen.kernels >= 3, "{:#?}", seen.templates);
    // Tiles of workers, and lanes of vectors within them.
    assert!(seen.templates.iter().any(|t| t.contains("CTA") && t.contains("WARP") && t.contains("THREAD")), "{:#?}", seen.templates);
    let seen = found_again("cpu", &program("mlp", Some("unfused"), &[])?, 61)?;
    assert!(seen.kernels >= 5 && seen.without > 0, "libraries have no template: {:#?}", seen.templates);
    Ok(())
}

#[test]
fn templates_of_attention_are_found_again_on_cores() -> Result<(), Failure> {
    let seen = found_again("cpu", &program("mha", None, &[("b", 2), ("j", 64), ("h", 4), ("p", 32), ("i", 128)])?, 23)?;
    assert!(seen.kernels >= 5, "{:#?}", seen.templates);
    Ok(())
}

#[test]
fn templates_of_gpus_are_found_again() -> Result<(), Failure> {
    let seen = found_again("cuda", &program("softmax", None, &[("b", 2), ("j", 64)])?, 0)?;
    assert!(seen.kernels >= 2 && seen.templates.iter().any(|t| t.contains("WARP") && t.contains("CTA")), "{:#?}", seen.templates);
    let seen = found_again("cuda", &program("mlp", None, &[])?, 11)?;
    assert!(seen.kernels >= 1, "{:#?}", seen.templates);
    Ok(())
}

fn text_of(of: TemplateOf, spec: &KernelSpec, knobs: &[(&str, &str)]) -> Result<String, Failure> {
    let config = KernelConfig {
        layouts: BTreeMap::new(),
        knobs: knobs.iter().fold(sdfg::config::Knobs::default(), |all, (key, value)| all.with(key, value)),
    };
    let template = of(spec, &config)?.ok_or("it has no template")?;
    Ok(template.schedules.iter().map(|s| format!("{s};")).collect::<Vec<_>>().join(" "))
}

#[test]
fn knobs_of_a_softmax_show_in_its_template() -> Result<(), Failure> {
    let program = program("softmax", None, &[("b", 8), ("j", 512), ("h", 16)])?;
    let (spec, cores) = (kernel(&program, "y")?, target::TargetInfo::find("cpu").ok_or("no cores")?.template);
    // Vectors along the row: rows are shared by workers, and what several loops of a row read is in scratch memory.
    let along_rows = text_of(cores, &spec, &[("vector", "k")])?;
    assert!(along_rows.ends_with("y[GRID,GRID,GRID,WARP];") && along_rows.contains("[GRID,GRID,GRID,WARP]S;"), "{along_rows}");
    // Vectors along points: blocks of 64 queries, and a row is walked one element after the other.
    let along_points = text_of(cores, &spec, &[("vector", "j"), ("lanes", "64")])?;
    assert!(along_points.ends_with("y[GRID,GRID,GRID_8-WARP_64,THREAD];"), "{along_points}");
    let fewer_lanes = text_of(cores, &spec, &[("vector", "j"), ("lanes", "16")])?;
    assert!(fewer_lanes.ends_with("y[GRID,GRID,GRID_32-WARP_16,THREAD];"), "{fewer_lanes}");
    // The order of loops is not in the grammar.
    let turned = text_of(cores, &spec, &[("vector", "k"), ("order", "j,b,h")])?;
    assert_eq!(turned, along_rows);

    let gpu = target::TargetInfo::find("cuda").ok_or("no GPU")?.template;
    // A warp has a row, eight rows a block; each lane takes four neighbours four times.
    let warps = text_of(gpu, &spec, &[("vector", "k"), ("order", "h,b,j"), ("threads", "256"), ("rows", "8"), ("width", "4")])?;
    assert!(warps.ends_with("y[GRID,GRID,GRID_64-WARP_8,THREAD_4-CTA_32-THREAD_4];"), "{warps}");
    // The block has a row: its values are handed over in registers, or in shared memory.
    let knobs = [("vector", "k"), ("order", "h,b,j"), ("threads", "128"), ("rows", "1"), ("width", "4"), ("loops", "two")];
    let block = text_of(gpu, &spec, &[&knobs[..], &[("hold", "shared")]].concat())?;
    assert!(block.ends_with("y[GRID,GRID,GRID,CTA_128-THREAD_4];") && block.contains("]S;"), "{block}");
    let registers = text_of(gpu, &spec, &[&knobs[..], &[("hold", "registers")]].concat())?;
    assert!(!registers.contains("]S;"), "{registers}");
    Ok(())
}

#[test]
fn knobs_of_a_product_show_in_its_template() -> Result<(), Failure> {
    let program = program("mlp", Some("unfused"), &[])?;
    let units = program.units();
    let mut products = units.iter().filter_map(|(_, _, unit)| match unit {
        Unit::Operation(o) if o.class() == sdfg::Class::Contraction => Some(unit),
        _ => None,
    });
    let unit = products.next().ok_or("there is no product")?;
    let (spec, cores) = (KernelSpec::new(&program, unit)?, target::TargetInfo::find("cpu").ok_or("no cores")?.template);
    // hidden[u,b] = w1[u,i]·x[i,b], u=512, b=64, i=256: tiles of 128 rows, vectors along the 64 columns, 100 steps packed at once.
    let tiles = text_of(cores, &spec, &[("tile", "u:128,b:64"), ("depth", "100"), ("vector", "b")])?;
    assert!(tiles.ends_with("[GRID_4-CTA_128,WARP,THREAD_3-THREAD_100];"), "{tiles}");
    let all_at_once = text_of(cores, &spec, &[("tile", "u:512,b:32"), ("depth", "384"), ("vector", "b")])?;
    assert!(all_at_once.ends_with("[CTA,GRID_2-WARP_32,THREAD];"), "{all_at_once}");
    Ok(())
}

#[test]
fn sums_over_points_show_who_adds_them_up() -> Result<(), Failure> {
    // The gradient of a bias is a sum over all columns.
    let program = program("mlp", Some("unfused"), &[])?;
    let cores = target::TargetInfo::find("cpu").ok_or("no cores")?.template;
    let mut found = 0;
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        let (Unit::Scope(_), Ok(space)) = (&unit, kernels::space(&spec)) else { continue };
        let has = |reduce: &str| (0..space.count().min(512)).map(|n| space.config(n)).find(|c| c.knobs.get("reduce") == Some(reduce));
        let (Some(inner), Some(private)) = (has("inner"), has("private")) else { continue };
        let [inner, private] = [inner, private].map(|config| cores(&spec, &config));
        let (Some(inner), Some(private)) = (inner?, private?) else { continue };
        // Workers share the summed index and keep partial results, or one worker adds up a result by itself.
        assert!(private.schedules.iter().any(|s| s.on_chip), "{private}");
        assert!(inner != private, "{inner}");
        found += 1;
    }
    assert!(found > 0, "no kernel sums over points");
    Ok(())
}

#[test]
fn templates_that_no_configuration_means_are_told_with_the_nearest() -> Result<(), Failure> {
    let program = program("softmax", None, &[("b", 2), ("j", 64)])?;
    let spec = kernel(&program, "y")?;
    let (space, cores) = (kernels::space(&spec)?, target::TargetInfo::find("cpu").ok_or("no cores")?.template);
    let config = space.config(0);
    let templates = TemplateSpace::new(&spec, &*space, (&config, &config.layouts), cores)?;
    let ask = |text: &str| -> Result<String, Failure> {
        match templates.find(&text.parse()?, None) {
            Ok(found) => Err(format!("{text} is {}", found.template).into()),
            Err(error) => Ok(error.to_string()),
        }
    };
    let unknown = ask("z[GRID,GRID,GRID,WARP];")?;
    assert!(unknown.contains("no operator `z`") && unknown.contains("`y`"), "{unknown}");
    let short = ask("y[GRID,WARP];")?;
    assert!(short.contains("4 dims (h, b, j, k)") && short.contains("gives 2"), "{short}");
    let none = ask("y[WARP,WARP,WARP,WARP];")?;
    assert!(none.contains("the nearest are") && none.lines().count() > 2, "{none}");
    assert!(
        matches!(templates.find(&"y[WARP,WARP,WARP,WARP];".parse()?, None), Err(TemplateError::NotFound { nearest, .. }) if nearest.len() > 1)
    );
    Ok(())
}
