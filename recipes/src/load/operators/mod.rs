//! The operators that a step can call: a file for each, or for a family of them.
//!
//! An operator says how it is called and what value a call is. A new one is a new [`Operator`] in a file of its own, and a line in
//! [`FAMILIES`].

mod activation;
mod argmax;
mod call;
mod dropout;
mod elsewhere;
mod function;
mod logarithmic;
mod normalization;
mod reduction;
mod root_mean_square;
mod scatter;
mod select;
mod size;
mod softmax;
pub mod sugar;

pub use dropout::GIVEN_STREAM;

use super::context::StepContext;
use super::names::nearest;
use super::parser::{Argument, Ast, ParsedExpr};
use super::problem::{Hint, Problem, SourceLocation};
use super::value::StepValue;
use call::Call;

/// One operator.
struct Operator {
    name: &'static str,
    /// How many operands stand before the options: at least, at most.
    operands: (usize, usize),
    options: &'static [&'static str],
    /// What a person reads when a call does not fit.
    usage: &'static str,
    /// Whether its operand may use the indices after `over:`, which are not those of the result.
    binds: bool,
    /// The value of a call; `None` if it does not fit.
    value: fn(&mut Call) -> Option<StepValue>,
}

const FAMILIES: &[&[Operator]] = &[
    function::ALL,
    activation::ALL,
    argmax::ALL,
    select::ALL,
    size::ALL,
    dropout::ALL,
    softmax::ALL,
    logarithmic::ALL,
    reduction::ALL,
    scatter::ALL,
    normalization::ALL,
    root_mean_square::ALL,
];

fn all() -> impl Iterator<Item = &'static Operator> {
    function::TABLE.iter().chain(FAMILIES.iter().copied().flatten())
}

/// Every operator's name, and every layer's.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().map(|o| o.name).chain(sugar::names())
}

/// The arguments that are expressions: all but `over`, `form` and the dim of `size`.
pub fn operands<'a>(name: &str, arguments: &'a [Argument]) -> impl Iterator<Item = &'a ParsedExpr> {
    let none = name == "size";
    let plain = |a: &&Argument| a.option.as_ref().is_none_or(|o| !matches!(o.text.as_str(), "over" | "form" | "into"));
    arguments.iter().filter(move |a| !none && plain(a)).map(|a| &a.value)
}

/// The indices that a call binds for its operand: those that a reduction sums.
pub fn bound(name: &str, arguments: &[Argument]) -> Vec<String> {
    let binds = all().any(|o| o.name == name && o.binds);
    let over = arguments.iter().find(|a| binds && a.option.as_ref().is_some_and(|o| o.text == "over"));
    match over.map(|a| &a.value.ast) {
        Some(Ast::Word(index)) => vec![index.clone()],
        Some(Ast::List(items)) => {
            items.iter().filter_map(|item| if let Ast::Word(index) = &item.ast { Some(index.clone()) } else { None }).collect()
        }
        _ => Vec::new(),
    }
}

/// The value of a call where the indices `kept` are bound. `None` after an error, which has been reported.
pub fn call(
    context: &mut dyn StepContext,
    place: SourceLocation,
    name: &str,
    arguments: &[Argument],
    kept: &[String],
) -> Option<StepValue> {
    let Some(operator) = all().find(|o| o.name == name) else {
        let hint = elsewhere::instead(name).map_or_else(|| nearest(name, names()), Hint::Instead);
        context.problems().add(place, Problem::UnknownOperator { name: name.into(), hint });
        return None;
    };
    let before = context.problems().failures();
    for option in arguments.iter().filter_map(|a| a.option.as_ref()) {
        if !operator.options.contains(&option.text.as_str()) {
            let hint = nearest(&option.text, operator.options.iter().copied());
            context.problems().add(option.place, Problem::UnknownOption { operator: name.into(), option: option.text.clone(), hint });
        }
    }
    let operands: Vec<&ParsedExpr> = arguments.iter().filter(|a| a.option.is_none()).map(|a| &a.value).collect();
    let (least, most) = operator.operands;
    let twice = arguments.iter().enumerate().any(|(n, a)| a.option.is_some() && arguments.iter().take(n).any(|b| same_option(a, b)));
    if operands.len() < least || operands.len() > most || twice {
        context.problems().add(place, Problem::Arguments { operator: name.into(), expected: operator.usage.into() });
    }
    if context.problems().failures() > before {
        return None;
    }
    let mut call = Call { context, place, name: operator.name, operands, options: arguments, kept };
    let value = (operator.value)(&mut call);
    if value.is_none() && call.context.problems().failures() == before {
        call.context.problems().add(place, Problem::Arguments { operator: name.into(), expected: operator.usage.into() });
    }
    value
}

fn same_option(a: &Argument, b: &Argument) -> bool {
    matches!((&a.option, &b.option), (Some(a), Some(b)) if a.text == b.text)
}

#[cfg(test)]
mod tests {
    /// The page that people learn the language from names every operator, and its examples are recipes.
    #[test]
    fn the_language_is_written_down() {
        let page = include_str!("../../../language.md");
        let doubled: Vec<&str> = super::names().filter(|name| super::elsewhere::instead(name).is_some()).collect();
        assert!(doubled.is_empty(), "these are operators, and need no other words: {doubled:?}");
        let missing: Vec<&str> = super::names().filter(|name| !page.contains(&format!("`{name}("))).collect();
        assert!(missing.is_empty(), "{missing:?}");
        for example in page.split("```yaml\n").skip(1) {
            let example = example.split("```").next().unwrap_or_default();
            crate::load::load_str("language.yaml", example, &[]).unwrap_or_else(|errors| panic!("{errors}"));
        }
    }
}
