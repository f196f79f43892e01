//! Every row of the table of variants, over random recipes, with every rewrite checked by the interpreter.

use kernels::target::cuda::cublaslt::FusedContraction;
use recipes::load::{Overrides, load_str};
use recipes::pipeline::variants::execution_scores::RunPattern;
use recipes::pipeline::variants::programs::{programs_on, stitched_by_times};
use recipes::pipeline::variants::stitching::StatePlan;
use recipes::pipeline::variants::table::{Devices, PassStep, VARIANTS, VariantId};
use recipes::pipeline::variants::{FusionPlan, RewriteOptions};
use sdfg::Dtype;
use std::collections::{BTreeMap, BTreeSet};

type Failure = Box<dyn std::error::Error>;

/// Pseudo-random numbers from a seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        // A step of Knuth's linear congruential generator; its upper bits vary.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[self.below(words.len())]
    }
}

/// A random network: perhaps attention, perhaps a gated layer, then layers with biases, activations, norms and residuals.
fn recipe(seed: u64) -> String {
    let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut parameters: Vec<(String, &str)> = vec![];
    let mut steps: Vec<String> = vec![];
    let mut last = "x".to_string();
    if draw.below(3) > 0 {
        for name in ["q", "k", "v"] {
            let at = if name == "q" { "j" } else { "k" };
            parameters.push((format!("w{name}"), "[p, h, i]"));
            let bias = if draw.below(2) > 0 { format!(" + b{name}[p,h]") } else { String::new() };
            if !bias.is_empty() {
                parameters.push((format!("b{name}"), "[p, h]"));
            }
            steps.push(format!("{name}{name}[p,h,b,{at}] = w{name}[p,h,i] * x[i,b,{at}]{bias}"));
        }
        steps.push("beta[h,b,j,k] = 0.5 * kk[p,h,b,k] * qq[p,h,b,j]".into());
        steps.push(
            draw.of(&["alpha[h,b,j,k] = softmax(beta, over: k)", "alpha[h,b,j,k] = dropout(softmax(beta, over: k), rate: 0.2)"]).into(),
        );
        steps.push("gamma[p,h,b,j] = vv[p,h,b,k] * alpha[h,b,j,k]".into());
        parameters.push(("wo".into(), "[p, h, i]"));
        steps.push("at[i,b,j] = wo[p,h,i] * gamma[p,h,b,j]".into());
        last = "at".into();
    }
    for n in 0..1 + draw.below(2) {
        if draw.below(2) > 0 {
            steps.push(format!("r{n}[i,b,j] = {last}[i,b,j] + x[i,b,j]"));
            last = format!("r{n}");
        }
        if draw.below(2) > 0 {
            parameters.extend([(format!("s{n}"), "[i]"), (format!("t{n}"), "[i]")]);
            steps.push(format!("n{n}[i,b,j] = layernorm({last}, over: i, scale: s{n}, shift: t{n})"));
            last = format!("n{n}");
        }
        let activation = draw.of(&["relu", "gelu", "tanh", "silu", "relu"]);
        parameters.extend([(format!("a{n}"), "[u, i]"), (format!("c{n}"), "[u]"), (format!("d{n}"), "[i, u]"), (format!("e{n}"), "[i]")]);
        if draw.below(3) > 0 {
            steps.push(format!("h{n}[u,b,j] = {activation}(a{n}[u,i] * {last}[i,b,j] + c{n}[u])"));
        } else {
            parameters.push((format!("g{n}"), "[u, i]"));
            steps.push(format!("f{n}[u,b,j] = {activation}(a{n}[u,i] * {last}[i,b,j] + c{n}[u])"));
            steps.push(format!("o{n}[u,b,j] = g{n}[u,i] * {last}[i,b,j]"));
            steps.push(format!("h{n}[u,b,j] = f{n}[u,b,j] * o{n}[u,b,j]"));
        }
        let dropped = if draw.below(3) == 0 { ("dropout(", ", rate: 0.3)") } else { ("", "") };
        steps.push(format!("y{n}[i,b,j] = {}d{n}[i,u] * h{n}[u,b,j] + e{n}[i]{}", dropped.0, dropped.1));
        last = format!("y{n}");
    }
    let parameters: Vec<String> = parameters.iter().map(|(name, dims)| format!("  {name}: {dims}")).collect();
    let steps: Vec<String> = steps.iter().map(|step| format!("  - \"{step}\"")).collect();
    format!(
        "model: random{seed}\ndims: {{b: 8, j: 512, k: j, h: 16, p: 64, i: 1024, u: 4096}}\ndtype: f32\ninputs:\n  x: [i, b, j]\nparameters:\n{}\nsteps:\n{}\ntrain: {{upstream: {last}}}\n",
        parameters.join("\n"),
        steps.join("\n")
    )
}

/// A layer and one that reads windows of it, forward, with biases that are not 0 where the picture ends.
fn layers(window: i64, stride: i64) -> String {
    let (pad, size) = ((window - 1) / 2, (28 - 1) / stride + 1);
    format!(
        "model: layers\ndims: {{n: 1, c: 192, h: 28, w: 28, m: 16, o: 32, r: {window}, s: {window}, p: {size}, q: {size}}}\ndtype: f32\n\
         inputs:\n  x: [n, c, h, w]\nparameters:\n  k: [m, c]\n  b: [m]\n  f: [o, m, r, s]\n  e: [o]\nsteps:\n  \
         - \"a[n,m,h,w] = relu(k[m,c] * x[n,c,h,w] + b[m])\"\n  \
         - \"y[n,o,p,q] = relu(f[o,m,r,s] * a[n,m,{stride}*p+r-{pad},{stride}*q+s-{pad} else 0] + e[o])\"\noutputs: [y]\n"
    )
}

/// With `--verify-each`, which compares results and gradients after every pass, no row of the table is wrong; every row occurs.
#[test]
fn every_row_is_right_over_random_recipes() -> Result<(), Failure> {
    let mut met: BTreeMap<VariantId, usize> = BTreeMap::new();
    // These seeds meet every row: attention with a dropout, rectifiers, several layers, and a network with neither.
    for seed in [6, 14, 22] {
        let text = recipe(seed);
        let narrow = Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() };
        let recipe = load_str("random.yaml", &text, &narrow).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let programs = programs_on(&recipe, true, Some(FusedContraction::has)).map_err(|e| format!("{e}\n{text}"))?;
        for variant in &programs.variants {
            *met.entry(variant.key.id).or_default() += 1;
            // A row's defining pass is in the log of its program.
            let defining = variant.key.id.row().defining;
            assert!(defining.is_none_or(|step| step.rewrote(&variant.steps)), "{}: {:?}\n{text}", variant.key, variant.steps);
        }
    }
    // A plan of fusion is carried out on cores alone.
    let text = recipe(6);
    let on_cores = programs_on(&load_str("random.yaml", &text, &[])?, true, None).map_err(|e| format!("{e}\n{text}"))?;
    let stitched = on_cores.variants.iter().find(|variant| variant.key.is(VariantId::Stitched)).ok_or("a stitched program")?;
    let plan = stitched.plan.as_ref().ok_or("its plan")?;
    assert!(plan.proof().1 && plan.made.len() > 2, "{}", plan.relative());
    // Each pattern that was made is one kernel of the program, and none of its units is left.
    let left: BTreeSet<String> = stitched.program.units().iter().map(|(_, _, unit)| unit.name().to_string()).collect();
    for made in &plan.made {
        assert!(left.contains(&made.kernel), "{made:?}");
        assert!(made.units.iter().all(|unit| *unit == made.kernel || !left.contains(unit)), "{made:?}");
    }
    // Layers hand over on cores alone.
    for (window, stride) in [(3, 1), (5, 1), (3, 2)] {
        let text = layers(window, stride);
        let recipe = load_str("layers.yaml", &text, &[]).unwrap_or_else(|e| panic!("{e}\n{text}"));
        for variant in &programs_on(&recipe, true, None).map_err(|e| format!("{e}\n{text}"))?.variants {
            *met.entry(variant.key.id).or_default() += 1;
        }
    }
    let made: BTreeSet<VariantId> = VARIANTS.iter().filter(|row| row.is_made_of_recipe()).map(|row| row.id).collect();
    assert_eq!(met.keys().copied().collect::<BTreeSet<_>>(), made, "{met:?}");
    Ok(())
}

/// A program that leaves out what nobody reads no longer says how long a tensor must be: the sizes at which it is compared with others are
/// those that suffice for both.
#[test]
fn unread_elements_are_left_out_at_sizes_of_both() -> Result<(), Failure> {
    let head = "model: m\ndims: {n: 2, c: 3, h: 23, w: 3, p: 5}\ninputs: {x: [n, c, h]}\nsteps:\n  \
                - \"t[n,c,h] = max(x[n,c,h+w-1 else -inf], over: w)\"\n";
    for step in ["y[n,c] = exp(t[n,c,11])", "y[n,c,p] = exp(t[n,c,4*p+1])"] {
        let recipe = load_str("m.yaml", &format!("{head}  - \"{step}\"\noutputs: [y]\n"), &[])?;
        let programs = programs_on(&recipe, true, None)?;
        let fused = programs.variants.iter().find(|variant| variant.key.is(VariantId::Fused)).ok_or("a fused program")?;
        assert!(PassStep::UnreadElements.rewrote(&fused.steps), "{step}: {:?}", fused.steps);
    }
    Ok(())
}

/// A pattern that was run is scored by its times: the one that lost is not chosen again, and a new plan says what it is relative to.
#[test]
fn patterns_that_lose_by_their_times_are_dropped() -> Result<(), Failure> {
    let recipe = load_str("random.yaml", &recipe(6), &[])?;
    let options = RewriteOptions { only: vec![VariantId::Stitched], ..RewriteOptions::default() };
    let programs = programs_on(&recipe, options.clone(), None)?;
    let plan = programs.variants.iter().find_map(|variant| variant.plan.clone()).ok_or("a plan of fusion")?;
    let patterns = |plan: &FusionPlan| plan.plans.iter().flat_map(StatePlan::patterns).collect::<BTreeSet<_>>();
    let best = plan.plans.iter().flat_map(|state| state.chosen.iter().zip(state.patterns())).max_by_key(|(chosen, _)| chosen.score_ps);
    let (loser, units) = best.ok_or("a pattern")?;
    let ran = |saved_ps: i64| {
        let run = RunPattern { form: loser.form.clone(), model_ps: loser.model_ps, more_ps: loser.more_ps, saved_ps };
        let planning = plan.planning.with_executed(plan.planning.executed.and([run]));
        stitched_by_times(&recipe, &planning, &options)
    };
    assert!(patterns(&plan).contains(&units));
    let again = ran(-1_000_000)?.ok_or("a program of the other patterns")?;
    let other = again.plan.ok_or("its plan")?;
    assert!(again.key.is(VariantId::StitchedByTimes) && !patterns(&other).contains(&units), "{units:?}");
    assert!(other.proof().1 && other.relative().contains("1 pattern by the times of their kernels"), "{}", other.relative());
    // A pattern that saves what the model says is chosen as before.
    let same = ran(loser.model_ps + loser.more_ps)?.and_then(|variant| variant.plan).ok_or("a plan")?;
    assert_eq!(patterns(&same), patterns(&plan));
    Ok(())
}

/// Cores only get the rows for any device, and a recipe without a loss gets no rows that need gradients.
#[test]
fn rows_are_made_where_they_apply() -> Result<(), Failure> {
    let text = recipe(1);
    let of = |text: &str, library| -> Result<BTreeSet<VariantId>, Failure> {
        let programs = programs_on(&load_str("random.yaml", text, &[])?, false, library)?;
        Ok(programs.variants.iter().map(|v| v.key.id).collect())
    };
    assert!(of(&text, None)?.iter().all(|id| id.row().devices != Devices::Gpu));
    let forward = &text[..text.find("train:").unwrap_or(text.len())];
    let needs_gradients = |id: &&VariantId| id.row().defining == Some(PassStep::RowStatisticsInMemory);
    assert_eq!(of(forward, Some(FusedContraction::has))?.iter().filter(needs_gradients).count(), 0);
    Ok(())
}
