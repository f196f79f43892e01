//! Every way to run one contraction: layouts of its tensors × mappings × libraries × threads, decoded from a number.

use super::estimate;
use super::executable::Plan;
use super::library::{Library, Threads};
use super::mapping::{Axis, Call, Group, Mapping, choices, is_feasible, mappings};
use super::problem::{ContractionError, Problem};
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};
use std::collections::BTreeMap;
use std::fmt::Display;

/// All plain permutations of the tensors and all knobs of one contraction.
///
/// How many mappings there are depends on the layouts, so numbers are decoded in two steps: the layouts by a search in
/// running totals, the rest in mixed radix. Nothing is enumerated in advance but the totals.
#[derive(Clone, Debug)]
pub struct ContractionSpace {
    pub(super) problem: Problem,
    cores: usize,
    /// The distinct containers, and for `a`, `b`, `out` which of them it is.
    tensors: Vec<String>,
    which: [usize; 3],
    layouts: Vec<Vec<Layout>>,
    /// Configurations before the combination of layouts of this number; one more entry than there are combinations.
    before: Vec<u64>,
}

/// One point of the space.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// By distinct container.
    pub layouts: Vec<Layout>,
    pub mapping: Mapping,
    pub library: Library,
    pub threads: Threads,
}

impl ContractionSpace {
    /// `cores` is what the kernel will run on; on one core there is nothing to choose for `threads`.
    pub fn new(problem: Problem, cores: usize) -> Result<Self, ContractionError> {
        let mut tensors: Vec<String> = Vec::new();
        let mut layouts = Vec::new();
        let which = problem.tensors.each_ref().map(|tensor| match tensors.iter().position(|t| *t == tensor.data) {
            Some(at) => at,
            None => {
                tensors.push(tensor.data.clone());
                layouts.push(Layout::permutations(&tensor.dims));
                tensors.len() - 1
            }
        });
        let mut space = ContractionSpace { problem, cores: cores.max(1), tensors, which, layouts, before: vec![0] };
        space.before = space.totals()?;
        Ok(space)
    }

    /// Running totals over the combinations of layouts. The number of mappings is a product of three factors, each of which
    /// depends on two of the tensors: they are worked out once per pair.
    fn totals(&self) -> Result<Vec<u64>, ContractionError> {
        let mut factor: BTreeMap<(Group, usize, usize), u64> = BTreeMap::new();
        let mut before = vec![0u64];
        let mut total = 0u64;
        for combination in 0..self.combinations() {
            let digits = self.digits(combination);
            let mut axes: Option<Vec<Axis>> = None;
            let mut count = self.knobs();
            for (group, x, y) in [(Group::Rows, 0, 2), (Group::Columns, 1, 2), (Group::Depth, 0, 1)] {
                let key = (group, digits[self.which[x]], digits[self.which[y]]);
                count *= match factor.get(&key) {
                    Some(known) => *known,
                    None => {
                        if axes.is_none() {
                            axes = Some(self.problem.axes(self.triple(&self.layouts_at(&digits)))?);
                        }
                        let found = axes.as_deref().map_or(0, |axes| choices(axes, group).len() as u64);
                        factor.insert(key, found);
                        found
                    }
                };
            }
            total += count;
            before.push(total);
        }
        Ok(before)
    }

    fn combinations(&self) -> usize {
        self.layouts.iter().map(Vec::len).product()
    }

    /// Settings of library and threads.
    fn knobs(&self) -> u64 {
        (Library::ALL.len() * self.threads().len()) as u64
    }

    fn threads(&self) -> &'static [Threads] {
        if self.cores > 1 { &Threads::ALL } else { &[Threads::Inside] }
    }

    /// Which layout each container has in a combination; the last container varies fastest.
    fn digits(&self, mut combination: usize) -> Vec<usize> {
        let mut digits = vec![0; self.layouts.len()];
        for (digit, layouts) in digits.iter_mut().zip(&self.layouts).rev() {
            *digit = combination % layouts.len();
            combination /= layouts.len();
        }
        digits
    }

    fn layouts_at<'a>(&'a self, digits: &[usize]) -> Vec<&'a Layout> {
        self.layouts.iter().zip(digits).map(|(layouts, digit)| &layouts[*digit]).collect()
    }

    /// From layouts by container to those of `a`, `b`, `out`.
    fn triple<'a>(&self, layouts: &[&'a Layout]) -> [&'a Layout; 3] {
        self.which.map(|w| layouts[w])
    }

    /// How many configurations there are.
    pub fn len(&self) -> u64 {
        self.before.last().copied().unwrap_or(0)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn containers(&self) -> &[String] {
        &self.tensors
    }

    /// Configuration `number`; `None` beyond the last one.
    pub fn choice(&self, number: u64) -> Option<Choice> {
        if number >= self.len() {
            return None;
        }
        let combination = self.before.partition_point(|b| *b <= number) - 1;
        let mut rest = number - self.before[combination];
        let layouts = self.layouts_at(&self.digits(combination));
        let axes = self.problem.axes(self.triple(&layouts)).ok()?;
        let mut digit = |radix: usize| {
            let digit = (rest % radix as u64) as usize;
            rest /= radix as u64;
            digit
        };
        let threads = self.threads()[digit(self.threads().len())];
        let library = Library::ALL[digit(Library::ALL.len())];
        let mut pick = |group: Group| {
            let mut sets = choices(&axes, group);
            let at = digit(sets.len());
            sets.swap_remove(at)
        };
        let mapping = Mapping { rows: pick(Group::Rows), columns: pick(Group::Columns), depth: pick(Group::Depth) };
        Some(Choice { layouts: layouts.into_iter().cloned().collect(), mapping, library, threads })
    }

    /// The choice in the form in which plans hold it.
    pub fn kernel_config(&self, choice: &Choice) -> KernelConfig {
        KernelConfig {
            layouts: self.tensors.iter().cloned().zip(choice.layouts.iter().cloned()).collect(),
            knobs: Knobs::default().with("mapping", &choice.mapping).with("library", choice.library).with("threads", choice.threads),
        }
    }

    /// Everything worked out for a choice of this space.
    pub fn plan(&self, choice: &Choice) -> Result<Plan, ContractionError> {
        let layouts = self.triple(&choice.layouts.iter().collect::<Vec<_>>());
        self.problem.plan(layouts, &choice.mapping, choice.library, choice.threads)
    }

    /// What configuration `number` hands to the library. Configurations of equal identity do the same and need one
    /// measurement.
    pub fn identity(&self, number: u64) -> Option<String> {
        let choice = self.choice(number)?;
        let Plan { call, origins, library, threads, .. } = self.plan(&choice).ok()?;
        let at = if origins == [0; 3] { String::new() } else { format!(" at {origins:?}") };
        Some(format!("{} {library} {threads} {}{at}", self.problem.dtype, call.normal()))
    }

    /// Combinations of layouts under which one (batched) BLAS call with unit strides does everything, of all combinations.
    pub fn feasible(&self) -> Result<(u64, u64), ContractionError> {
        let mut feasible = 0;
        for combination in 0..self.combinations() {
            let layouts = self.layouts_at(&self.digits(combination));
            feasible += u64::from(is_feasible(&self.problem.axes(self.triple(&layouts))?));
        }
        Ok((feasible, self.combinations() as u64))
    }

    /// Predicted seconds of a choice.
    pub fn seconds(&self, choice: &Choice) -> Result<f64, ContractionError> {
        let plan = self.plan(choice)?;
        Ok(estimate::seconds(&plan.call, choice.threads, self.cores, self.problem.width()))
    }

    /// The knobs that a person would expect to be good under given layouts (by distinct container).
    pub fn default_choice(&self, layouts: Vec<Layout>) -> Result<Choice, ContractionError> {
        let (mapping, threads) = self.problem.best(self.triple(&layouts.iter().collect::<Vec<_>>()), self.cores)?;
        Ok(Choice { layouts, mapping, library: Library::DEFAULT, threads })
    }

    /// The number of a choice, if the space has it.
    pub fn number(&self, choice: &Choice) -> Option<u64> {
        let digits: Vec<usize> =
            self.layouts.iter().zip(&choice.layouts).map(|(all, one)| all.iter().position(|l| l == one)).collect::<Option<_>>()?;
        let combination = digits.iter().zip(&self.layouts).fold(0, |n, (digit, layouts)| n * layouts.len() + digit);
        let (from, to) = (*self.before.get(combination)?, *self.before.get(combination + 1)?);
        (from..to).find(|n| self.choice(*n).as_ref() == Some(choice))
    }
}

impl Problem {
    /// Bytes of one element.
    pub fn width(&self) -> usize {
        self.dtype.bytes(1) as usize
    }

    /// Everything worked out for given layouts of `a`, `b`, `out` and given knobs.
    pub fn plan(&self, layouts: [&Layout; 3], mapping: &Mapping, library: Library, threads: Threads) -> Result<Plan, ContractionError> {
        let axes = self.axes(layouts)?;
        let call = Call::new(mapping, &axes).ok_or_else(|| self.unknown("mapping", mapping, mappings(&axes).iter()))?;
        Ok(Plan { call, origins: self.origins(layouts)?, scale: self.scale, library, threads })
    }

    /// The plan of a configuration. Absent layouts are the containers' own order, absent knobs the predicted best.
    pub fn plan_of(&self, config: &KernelConfig, cores: usize) -> Result<Plan, ContractionError> {
        let natural = self.tensors.each_ref().map(|t| Layout::of(&t.dims));
        let mut layouts = natural.each_ref();
        for (layout, tensor) in layouts.iter_mut().zip(&self.tensors) {
            *layout = config.layouts.get(&tensor.data).unwrap_or(layout);
        }
        let library = match config.knobs.get("library") {
            None => Library::DEFAULT,
            Some(text) => text.parse().map_err(|()| self.unknown("library", text, Library::ALL.iter()))?,
        };
        let mut threads: Option<Threads> = match config.knobs.get("threads") {
            None => None,
            Some(text) => Some(text.parse().map_err(|()| self.unknown("threads", text, Threads::ALL.iter()))?),
        };
        let mapping = match config.knobs.get("mapping") {
            None => {
                let (mapping, best) = self.best(layouts, cores)?;
                threads = threads.or(Some(best));
                mapping
            }
            Some(text) => match text.parse() {
                Ok(mapping) => mapping,
                Err(_) => return Err(self.unknown("mapping", text, mappings(&self.axes(layouts)?).iter())),
            },
        };
        let mut plan = self.plan(layouts, &mapping, library, threads.unwrap_or(Threads::Inside))?;
        if threads.is_none() {
            plan.threads = faster(&plan.call, cores, self.width()).1;
        }
        Ok(plan)
    }

    /// The mapping and threads with the least predicted time; of equals the first.
    pub fn best(&self, layouts: [&Layout; 3], cores: usize) -> Result<(Mapping, Threads), ContractionError> {
        let axes = self.axes(layouts)?;
        let timed = mappings(&axes).into_iter().filter_map(|mapping| {
            let (seconds, threads) = faster(&Call::new(&mapping, &axes)?, cores, self.width());
            Some((seconds, mapping, threads))
        });
        let best = timed.min_by(|(x, ..), (y, ..)| x.total_cmp(y)).map(|(_, mapping, threads)| (mapping, threads));
        best.ok_or_else(|| self.unknown("mapping", "", std::iter::empty::<&Mapping>()))
    }

    fn unknown<D: Display>(&self, key: &str, value: impl Display, allowed: impl Iterator<Item = D>) -> ContractionError {
        ContractionError::Knob {
            operation: self.name.clone(),
            key: key.to_string(),
            value: value.to_string(),
            allowed: allowed.map(|a| a.to_string()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Predicted seconds and threads of the better way to use the cores.
fn faster(call: &Call, cores: usize, bytes: usize) -> (f64, Threads) {
    let timed = Threads::ALL.map(|threads| (estimate::seconds(call, threads, cores, bytes), threads));
    if timed[1].0 < timed[0].0 { timed[1] } else { timed[0] }
}
