//! `memlet explain`: the reasons for a layout, a configuration or a fusion.

use super::out::{out, outln};
use super::place::{NamePlace, place};
use super::schedule_template;
use crate::analyze::schedule_template::{PlanKernel, PlanTemplate};
use crate::analyze::{Holders, RefusedPair, refusals};
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use crate::pipeline::run::candidate::Candidate;
use crate::pipeline::run::candidate::Exchange;
use crate::pipeline::variants::gemm_fusion::GemmFusion;
use crate::pipeline::variants::programs::programs_on;
use crate::pipeline::variants::rewrite_options::RewriteOptions;
use crate::pipeline::variants::table::VariantId;
use crate::pipeline::variants::variant::Variant;
use bench::model::FusionRefusal;
use bench::report::tables::refusals as refusals_table;
use bench::table::{Align, Cell, Table};
use bench::unit::{Bytes, significant};
use clap::Args;
use kernels::KernelSpec;
use kernels::template::TemplateError;
use kernels::tiles::LayerFlop;
use layouts::alternatives::GROUP;
use layouts::certificate::{Certificate, CertificateError, measurements};
use layouts::exact::SearchLimits;
use layouts::explain::{Explanation, Layers, explain};
use layouts::stack::joins;
use layouts::verify::{VerifyError, swept};
use layouts::{Method, Store, select};
use sdfg::Unit;
use sdfg::config::KernelConfig;
use sdfg::movement::movement;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use transforms::Refusal;

#[derive(Args, Clone)]
pub struct ExplainArgs {
    /// The folder of `memlet optimize` or `memlet sweep`, a plan or records in it, or a certificate of `memlet solve`
    file: PathBuf,
    /// A kernel, a tensor, a site where programs differ, or `program` for the choice among programs [default: list the names]
    name: Option<String>,
    /// A second kernel: why the two are not one
    other: Option<String>,
    /// Records of measurements [default: records.jsonl next to the plan, or those that the certificate names]
    #[arg(long)]
    records: Option<PathBuf>,
    /// With records: explain the choice for a stack of this many layers. A certificate has its own number
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    layers: u16,
    /// As with `memlet solve`
    #[arg(long, value_name = "DATA=DATA", value_parser = super::solve::join)]
    join: Vec<(String, String)>,
    /// Print the code that is generated for the kernel in the plan's configuration, and nothing else; for a GPU as for an H200
    #[arg(long, conflicts_with_all = ["other", "records", "layers", "join"])]
    code: bool,
    /// List the schedule templates that the kernel's configurations mean, the most promising one first, and nothing else
    #[arg(
        long, value_name = "MOST", num_args = 0..=1, require_equals = true, default_missing_value = "16",
        conflicts_with_all = ["other", "records", "layers", "join", "code"]
    )]
    templates: Option<usize>,
    /// Print JSON
    #[arg(long, conflicts_with = "code")]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    place: Option<NamePlace>,
    choice: Option<Explanation>,
    /// The configuration that the plan runs instead, if it was faster within the step.
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<Instead>,
    /// The configuration that the plan runs instead so that workers need no barrier after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    divided: Option<KernelConfig>,
    /// The schedule template that the plan runs; of a loop over time that of each kernel of its body.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    templates: Vec<PlanTemplate>,
    /// Of a kernel of several layers, what it computes again.
    #[serde(skip_serializing_if = "Option::is_none")]
    again: Option<ComputedAgain>,
    /// The kernel that holds both, if two names were given and one kernel holds both.
    together: Option<String>,
    apart: Vec<RefusedPair>,
}

/// Percent of the flop of a kernel's layers that the plan's configuration computes again, and that overlapping tiles of its size would.
#[derive(Serialize)]
struct ComputedAgain {
    percent: f64,
    overlapped_percent: f64,
    keeps_rows: bool,
}

impl ComputedAgain {
    fn of(chosen: &Candidate, name: &str) -> Result<Option<ComputedAgain>, PipelineError> {
        let (program, Some(config)) = (&chosen.program, chosen.configuration.kernels.get(name)) else { return Ok(None) };
        let units = program.units();
        let Some((_, _, unit)) = units.iter().find(|(_, _, unit)| unit.name() == name) else { return Ok(None) };
        let spec = KernelSpec::new(program, unit)?;
        let both = LayerFlop::of(&spec, config)?.zip(LayerFlop::overlapped(&spec, config)?);
        Ok(both.map(|(own, overlapped)| ComputedAgain {
            percent: 100.0 * own.again(),
            overlapped_percent: 100.0 * overlapped.again(),
            keeps_rows: config.knobs.get("form") == Some("rows"),
        }))
    }

    fn text(&self) -> String {
        match self.keeps_rows {
            true => format!(
                "it keeps rows and computes {:.2}% of its layers' flop again, at the beginning of strips; overlapped tiles of the same size \
                 would compute {:.2}%",
                self.percent, self.overlapped_percent
            ),
            false => format!("its tiles overlap and compute {:.2}% of its layers' flop again", self.percent),
        }
    }
}

#[derive(Serialize)]
struct Instead {
    taken: KernelConfig,
    #[serde(flatten)]
    exchange: Exchange,
}

impl ExplainArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let args = ExplainArgs { file: self.inside()?, ..self.clone() };
        match &args.name {
            Some(name) if args.code => out!("{}", args.text(name)?),
            Some(name) if args.templates.is_some() => args.templates(name)?,
            Some(name) => {
                let answer = args.answer(name)?;
                args.tell(name, &answer)?;
            }
            None if args.templates.is_some() => return Err(args.fault("name the kernel whose templates are to be listed")),
            None if args.code => return Err(args.fault("name the kernel whose code is to be printed")),
            None => args.tell_names()?,
        }
        Ok(())
    }

    /// The file to read in a folder: its plan, else its records.
    fn inside(&self) -> Result<PathBuf, PipelineError> {
        if !self.file.is_dir() {
            return Ok(self.file.clone());
        }
        let known = ["plan.json", "records.jsonl"].map(|name| self.file.join(name));
        let found = known.into_iter().find(|file| file.is_file());
        found.ok_or_else(|| self.fault("there is no plan.json and no records.jsonl in this folder; `memlet optimize RECIPE` writes both"))
    }

    fn answer(&self, name: &str) -> Result<Answer, PipelineError> {
        let records = self.file.extension().is_some_and(|e| e == "jsonl");
        match Certificate::read(&self.file) {
            Ok(certificate) if self.other.is_none() => {
                let choice = Some(self.certified(&certificate, name)?);
                return Ok(Answer {
                    place: None,
                    choice,
                    instead: None,
                    divided: None,
                    templates: vec![],
                    again: None,
                    together: None,
                    apart: vec![],
                });
            }
            // Other JSON is reported as no plan later.
            Ok(_) | Err(CertificateError::Format { .. }) => {}
            Err(error) if !records => return Err(error.into()),
            Err(_) => {}
        }
        let plan = if records { None } else { Some(Plan::read(&self.file)?) };
        match (&self.other, &plan) {
            (Some(other), Some(plan)) => self.pair(plan, name, other),
            (Some(_), None) => Err(self.fault("records do not know the recipe; give the plan.json to ask why two kernels are not one")),
            (None, plan) => {
                let place = plan.as_ref().and_then(|plan| place(&plan.chosen.program, name));
                let name = place.as_ref().map_or(name, |place| place.holder());
                let choice = self.choice(plan.as_ref(), name)?;
                let kernel = plan.as_ref().filter(|p| p.chosen.configuration.kernels.contains_key(name));
                // Without the recipe the refusals are left out, and the choice is explained nonetheless.
                let apart = kernel.and_then(|plan| Some(beside(&self.variant(plan).ok()?, name))).unwrap_or_default();
                let instead = kernel.and_then(|plan| instead(&plan.chosen, name));
                let is_divided = kernel.filter(|plan| plan.chosen.measured_as.contains_key(name));
                let divided = is_divided.and_then(|plan| plan.chosen.configuration.kernels.get(name)).cloned();
                let templates = kernel.map_or(Ok(vec![]), |plan| self.plan_templates(plan, name))?;
                let again = kernel.map(|plan| ComputedAgain::of(&plan.chosen, name)).transpose()?.flatten();
                Ok(Answer { place, choice: Some(choice), instead, divided, templates, again, together: None, apart })
            }
        }
    }

    /// Lists the names that can be explained.
    fn tell_names(&self) -> Result<(), PipelineError> {
        let program = |program: &layouts::SelectionProblem| names(program).map(str::to_string).collect::<BTreeSet<String>>();
        let mut taken = None;
        let (kernels, others) = match Certificate::read(&self.file) {
            Ok(certificate) => (vec![], program(&certificate.program)),
            Err(_) if self.file.extension().is_some_and(|e| e == "jsonl") => {
                let programs = layouts::SelectionProblem::of_records(&Store::read(&self.file)?);
                (vec![], programs.iter().flat_map(|(_, p)| program(p)).collect())
            }
            Err(_) => {
                let plan = Plan::read(&self.file)?;
                let kernels = movement(&plan.chosen.program).map_err(|e| PipelineError::Internal(e.to_string()))?;
                let tensors = plan.chosen.configuration.layouts.keys().cloned().collect();
                taken = plan.choice.map(|choice| format!("{}: {choice}", plan.chosen.name));
                (kernels, tensors)
            }
        };
        if self.json {
            let kernels: Vec<&str> = kernels.iter().map(|k| k.name.as_str()).collect();
            outln!("{}", serde_json::json!({"kernels": kernels, "others": others}));
            return Ok(());
        }
        if !kernels.is_empty() {
            let mut rows = Table::new(&[("kernel", "", Align::Left), ("bytes", "", Align::Right), ("holds", "", Align::Left)]);
            for kernel in &kernels {
                let holds = Cell::text(kernel.operators.join(", "));
                rows.row(vec![Cell::text(&kernel.name), Cell::text(Bytes(kernel.bytes()).to_string()), holds]);
            }
            outln!("{}", rows.text(bench::table::colour()));
        }
        if let Some(taken) = taken {
            outln!("{taken}");
        }
        let others: Vec<&str> = others.iter().map(String::as_str).collect();
        outln!("{}: {}", if kernels.is_empty() { "kernels, tensors and sites" } else { "tensors" }, others.join(", "));
        outln!("ask about one of them: memlet explain {} NAME", self.file.display());
        Ok(())
    }

    fn tell(&self, name: &str, answer: &Answer) -> Result<(), PipelineError> {
        if self.json {
            outln!("{}", serde_json::to_string(answer).map_err(|e| PipelineError::Internal(e.to_string()))?);
            return Ok(());
        }
        match &answer.place {
            Some(NamePlace::PartOf(whole)) => outln!("{name} is a part of {whole}"),
            Some(NamePlace::Inside(kernel)) => outln!("{name} is inside the kernel {kernel}"),
            None => {}
        }
        if let Some(choice) = &answer.choice {
            outln!("{choice}");
        }
        if let Some(Instead { taken, exchange }) = &answer.instead {
            let (ms, chosen) = (significant(exchange.taken_ms), significant(exchange.chosen_ms));
            outln!("  the plan runs {taken}: {ms} ms within the step instead of {chosen} ms");
        }
        if let Some(divided) = &answer.divided {
            outln!("  the plan runs {divided}, divided among workers so that it shares dispatches; it was measured as above");
        }
        answer.templates.iter().for_each(|template| outln!("{template}"));
        if let Some(again) = &answer.again {
            outln!("  {}", again.text());
        }
        if let (Some(kernel), Some(other)) = (&answer.together, &self.other) {
            outln!("{name} and {other} are one kernel: {kernel}");
        }
        // One refused pair is printed with its place; a kernel's refusals are grouped by kind of reason.
        if let [RefusedPair { first, second, reason, origin, .. }] = answer.apart.as_slice() {
            outln!("{first} and {second} are not one kernel: {reason}");
            if let Some(origin) = origin {
                outln!("  from: {origin}");
            }
        } else if !answer.apart.is_empty() {
            let row = |r: &RefusedPair| FusionRefusal {
                first: r.first.clone(),
                second: r.second.clone(),
                reason: r.reason.clone(),
                kind: r.kind.clone(),
            };
            let rows: Vec<FusionRefusal> = answer.apart.iter().map(row).collect();
            outln!("\nneighbours that are not one kernel with it\n\n{}", refusals_table(&rows).text(bench::table::colour()));
        }
        Ok(())
    }

    /// A kernel of the plan, by its name or by that of an operator in it.
    fn plan_kernel<'p>(&self, plan: &'p Plan, name: &str) -> Result<PlanKernel<'p>, PipelineError> {
        let place = place(&plan.chosen.program, name);
        let name = place.as_ref().map_or(name, |place| place.holder());
        PlanKernel::of(&plan.chosen, name)?.ok_or_else(|| {
            let units = plan.chosen.program.units();
            let names: Vec<&str> = units.iter().map(|(_, _, unit)| unit.name()).collect();
            self.fault(format!("there is no kernel `{name}` in the plan; there are: {}", names.join(", ")))
        })
    }

    /// The schedule template that the plan runs a kernel as.
    fn plan_templates(&self, plan: &Plan, name: &str) -> Result<Vec<PlanTemplate>, PipelineError> {
        let kernel = self.plan_kernel(plan, name)?;
        PlanTemplate::of(&plan.target, &kernel.spec, kernel.config)
    }

    /// Lists the schedule templates of a kernel.
    fn templates(&self, name: &str) -> Result<(), PipelineError> {
        let plan = Plan::read(&self.file)?;
        let kernel = self.plan_kernel(&plan, name)?;
        let bad = |e: TemplateError| self.fault(e.to_string());
        if matches!(kernel.spec.unit, Unit::Nested(_)) {
            let why = "it launches several kernels, which have templates of their own; without --templates those of the plan are printed";
            return Err(bad(TemplateError::NoTemplate { kernel: kernel.spec.name.clone(), why: why.into() }));
        }
        let why = "no code is generated for it here".to_string();
        let none = |_| bad(TemplateError::NoTemplate { kernel: kernel.spec.name.clone(), why: why.clone() });
        let space = plan.target.generated(&kernel.spec).map_err(none)?;
        let space = kernel.templates(&plan.target, &*space).map_err(bad)?;
        let own = plan.target.template()(&kernel.spec, kernel.config)?;
        schedule_template::list(&space, own.as_ref(), self.templates.unwrap_or_default(), self.json)
    }

    /// The generated code of a kernel in the plan's configuration, without in-place writes, which depend on the whole plan.
    fn text(&self, name: &str) -> Result<String, PipelineError> {
        let plan = Plan::read(&self.file)?;
        let PlanKernel { spec, config, .. } = self.plan_kernel(&plan, name)?;
        if kernels::loops::is_loop(&spec) {
            return body_code(&plan, &spec, config);
        }
        let code = plan.target.code(&spec, config)?;
        code.ok_or_else(|| self.fault(format!("`{}` runs in a library: it has no code of its own", spec.name)))
    }

    fn fault(&self, why: impl Into<String>) -> PipelineError {
        PipelineError::Plan { file: self.file.display().to_string(), why: why.into() }
    }

    /// The choice that a certificate proves.
    fn certified(&self, certificate: &Certificate, name: &str) -> Result<Explanation, PipelineError> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let named = || certificate.records.iter().map(|r| folder.join(r)).collect::<Vec<_>>();
        let store = Store::merge(&self.records.as_ref().map_or_else(named, |one| vec![one.clone()]))?;
        if certificate.measurements != measurements(&store) {
            return Err(self.fault(VerifyError::OtherMeasurements.to_string()));
        }
        swept(certificate, &store).map_err(|e| self.fault(e.to_string()))?;
        self.known(name, [&certificate.program])?;
        let layers = Layers { count: certificate.layers.len(), joins: certificate.joins.clone() };
        Ok(explain(&certificate.program, &store, name, &layers, SearchLimits::default())?)
    }

    /// Checks that some program has this name.
    fn known<'a>(&self, name: &str, programs: impl IntoIterator<Item = &'a layouts::SelectionProblem>) -> Result<(), PipelineError> {
        let mut known: BTreeSet<&str> = BTreeSet::new();
        for program in programs {
            known.extend(names(program));
        }
        if known.contains(name) {
            return Ok(());
        }
        let all: Vec<&str> = known.into_iter().collect();
        Err(self.fault(format!("no kernel or tensor `{}` was measured; there are: {}", name, all.join(", "))))
    }

    /// The records of the run that made a plan: in its folder, or where its certificate names them.
    fn beside(&self) -> Option<PathBuf> {
        let folder = self.file.parent().unwrap_or(Path::new("."));
        // One of several plans lies in a folder of its own.
        let folders = || [Some(folder), folder.parent()].into_iter().flatten();
        let named = |folder: &Path| Some(folder.join(Certificate::read(&folder.join("certificate.json")).ok()?.records.first()?));
        folders().map(|folder| folder.join("records.jsonl")).chain(folders().filter_map(named)).find(|records| records.is_file())
    }

    /// The choice of this name in the plan's program; without a plan, in the program with the fastest selection.
    fn choice(&self, plan: Option<&Plan>, name: &str) -> Result<Explanation, PipelineError> {
        let records = match plan {
            None => self.file.clone(),
            Some(_) => match self.records.clone().or_else(|| self.beside()) {
                Some(records) => records,
                None => return Err(self.fault("the records that it was chosen from are not beside it; name them by --records")),
            },
        };
        let store = Store::read(&records)?;
        // A plan has one program, but the choice among programs depends on all measurements.
        let plan = plan.filter(|_| name != GROUP);
        let of_plan = |program: &layouts::SelectionProblem| {
            plan.is_none_or(|plan| {
                let chosen = &plan.chosen.configuration.kernels;
                program.kernels.len() == chosen.len() && program.kernels.iter().all(|k| chosen.contains_key(&k.name))
            })
        };
        // Without a plan the whole decision is explained, including the program.
        let programs: Vec<layouts::SelectionProblem> = match plan {
            Some(_) => store.sessions().filter_map(|s| s.program.clone()).filter(of_plan).collect(),
            None => layouts::SelectionProblem::of_records(&store).into_iter().map(|(_, program)| program).collect(),
        };
        if name == GROUP && programs.iter().all(|p| p.alternatives.is_empty()) {
            return Err(self.fault("one program alone was measured, so there is none to choose another by"));
        }
        self.known(name, &programs)?;
        let mut found: Vec<(f64, &layouts::SelectionProblem)> = Vec::new();
        for program in programs.iter().filter(|p| names(p).any(|known| known == name)) {
            found.push((select(program, &store, Method::Exact, SearchLimits::default())?.total_ms, program));
        }
        let best = found.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let Some((_, program)) = best else { return Err(self.fault("nothing was measured")) };
        let layers = match (self.layers, plan) {
            (1, _) => Layers::one(),
            (_, Some(_)) => return Err(self.fault("a plan is of one layer; give the records with --layers")),
            (count, None) => {
                let joins = if self.join.is_empty() { joins(program)? } else { self.join.clone() };
                Layers { count: count.into(), joins }
            }
        };
        Ok(explain(program, &store, name, &layers, SearchLimits::default())?)
    }

    /// The plan's program with its refused fusions, derived from the recipe once more.
    fn variant(&self, plan: &Plan) -> Result<Variant, PipelineError> {
        let recipe = plan.recipe()?;
        if let Some(partial_fusion) = &plan.partial_fusion
            && let Some(fusion_set) = &partial_fusion.fusion_set
        {
            let mut variant =
                GemmFusion::generated(&recipe, &fusion_set.weights, RewriteOptions::without(&plan.barred))?.partly(fusion_set)?;
            partial_fusion.tell(&mut variant);
            if variant.program == plan.chosen.program {
                return Ok(variant);
            }
        }
        let programs = programs_on(&recipe, RewriteOptions::without(&plan.barred), plan.target.epilogues())?;
        let mut lent = programs.variants;
        if programs.unfused == plan.chosen.program {
            let nothing = Variant { key: VariantId::Unfused.into(), program: programs.unfused, refusals: vec![], ..lent.swap_remove(0) };
            return Ok(nothing);
        }
        if let Some(found) = lent.iter().find(|v| v.program == plan.chosen.program) {
            return Ok(found.clone());
        }
        // A merged program also has kernels of partially fused programs.
        let mut composing: BTreeMap<&[String], GemmFusion> = BTreeMap::new();
        let weighed = plan.partial_fusion.iter().flat_map(|m| m.trials.iter().map(|(_, fusion_set)| fusion_set).chain(&m.fusion_set));
        for fusion_set in weighed {
            if !composing.contains_key(fusion_set.weights.as_slice()) {
                composing.insert(
                    &fusion_set.weights,
                    GemmFusion::generated(&recipe, &fusion_set.weights, RewriteOptions::without(&plan.barred))?,
                );
            }
            lent.push(composing[fusion_set.weights.as_slice()].partly(fusion_set)?);
        }
        let units: Vec<Vec<Unit>> = lent.iter().map(|v| v.program.units().into_iter().map(|(_, _, unit)| unit).collect()).collect();
        let known = |unit: &Unit| units.iter().any(|all| all.contains(unit));
        let own = plan.chosen.program.units();
        if plan.partial_fusion.is_none() || !own.iter().all(|(_, _, unit)| known(unit)) {
            let why = format!("`{}` gives another program by now than when the plan was made; optimize again", plan.recipe);
            return Err(self.fault(why));
        }
        let here = |r: &&Refusal| r.units.iter().all(|name| own.iter().any(|(_, _, unit)| unit.name() == name));
        let refusals = lent.iter().flat_map(|v| v.refusals.iter().filter(here)).cloned().collect();
        let first = lent.swap_remove(0);
        Ok(Variant { program: plan.chosen.program.clone(), refusals, ..first })
    }

    /// Explains two kernels, or operators that kernels hold.
    fn pair(&self, plan: &Plan, name: &str, other: &str) -> Result<Answer, PipelineError> {
        let variant = self.variant(plan)?;
        let holders = Holders::of(&variant.program);
        let (first, second) = (self.holder(&variant, &holders, name)?, self.holder(&variant, &holders, other)?);
        let together = (first == second).then(|| first.clone());
        let is_pair = |r: &RefusedPair| [&r.first, &r.second] == [&first, &second] || [&r.first, &r.second] == [&second, &first];
        let apart: Vec<RefusedPair> = refusals(&variant).into_iter().filter(is_pair).collect();
        if together.is_none() && apart.is_empty() && variant.key.is(VariantId::Unfused) {
            return Err(self.fault("the plan is the unfused program, which was faster as a whole than all others: nothing in it is fused"));
        }
        if together.is_none() && apart.is_empty() {
            let kernels = movement(&plan.chosen.program).map_err(|e| PipelineError::Internal(e.to_string()))?;
            let kernel = |name: &String| kernels.iter().find(|k| k.name == *name);
            let pass = |name: &String| kernel(name).map(|k| k.pass);
            let reads = |name: &String| kernel(name).iter().flat_map(|k| &k.reads).map(|t| t.data.clone()).collect::<BTreeSet<_>>();
            let why = match (pass(&first) != pass(&second), reads(&first).is_disjoint(&reads(&second))) {
                (true, _) => "one runs in the forward, the other in the backward pass",
                (false, true) => "neither reads what the other writes, nor do both read one tensor",
                (false, false) => {
                    "neither reads what the other writes; contractions that read one tensor are stacked, where that is faster"
                }
            };
            return Err(self.fault(format!("no fusion of `{first}` and `{second}` was considered: {why}")));
        }
        Ok(Answer { place: None, choice: None, instead: None, divided: None, templates: vec![], again: None, together, apart })
    }

    /// The kernel of this name, or the one that holds this operator.
    fn holder(&self, variant: &Variant, holders: &Holders, name: &str) -> Result<String, PipelineError> {
        let names = || variant.program.units().iter().map(|(_, _, u)| u.name().to_string()).collect::<Vec<_>>().join(", ");
        let found = holders.of_name(name).map(str::to_string);
        found.ok_or_else(|| self.fault(format!("there is no kernel `{name}` in the plan; there are: {}", names())))
    }
}

/// The code of each kernel of a loop's body, in the order in which they run at each time.
fn body_code(plan: &Plan, spec: &KernelSpec, config: &KernelConfig) -> Result<String, PipelineError> {
    let Unit::Nested(sdfg::Nested { repeat: Some(repeat), .. }) = &spec.unit else {
        return Err(PipelineError::Internal(format!("`{}` is no loop", spec.name)));
    };
    let members = kernels::loops::members(spec, config);
    let order = if repeat.reversed { "from the last one to the first" } else { "from the first one to the last" };
    let times = spec.dims.get(&repeat.dim).copied().unwrap_or_default();
    let mut text =
        format!("/* {}: a loop over `{}`, {times} times, {order}. Each time runs, one after the other:\n", spec.name, repeat.dim);
    for (n, (member, _)) in members.iter().enumerate() {
        text += &format!("   {:>3} {}\n", n + 1, member.name);
    }
    text += "*/\n";
    for (n, (member, config)) in members.iter().enumerate() {
        text += &format!("\n/* ---- {} of {}: {} ---- */\n", n + 1, members.len(), member.name);
        text += &match kernels::loops::is_loop(member) {
            true => body_code(plan, member, config)?,
            false => match plan.target.code(member, config)? {
                Some(code) => code,
                None => format!("/* it runs in a library ({}): it has no code of its own */\n", config.knobs),
            },
        };
    }
    Ok(text)
}

/// Names that can be explained.
fn names(program: &layouts::SelectionProblem) -> impl Iterator<Item = &str> {
    let kernels = program.kernels.iter().map(|k| k.name.as_str());
    let sites = program.alternatives.keys().map(String::as_str);
    kernels.chain(program.tensors.iter().map(|t| t.data.as_str())).chain(sites).chain((!program.alternatives.is_empty()).then_some(GROUP))
}

/// The exchange of a kernel's selected configuration for the one that the plan runs.
fn instead(candidate: &Candidate, kernel: &str) -> Option<Instead> {
    let exchange = candidate.exchanges.iter().find(|e| e.kernel == kernel)?.clone();
    Some(Instead { taken: candidate.configuration.kernels.get(kernel)?.clone(), exchange })
}

/// A kernel's neighbours that are separate kernels, each once.
fn beside(variant: &Variant, name: &str) -> Vec<RefusedPair> {
    refusals(variant).into_iter().filter(|r| r.neighbours && (r.first == name || r.second == name)).collect()
}
