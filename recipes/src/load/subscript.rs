//! Which subscripts a tensor can be read at, and how a recipe says what others would say.

use super::parser::{Ast, Node};
use super::problem::{Place, Problem};
use super::yaml::Name;

/// What stands before the brackets.
#[derive(Clone, Copy)]
pub enum Brackets<'a> {
    /// A tensor that is read.
    Read(&'a str),
    /// The tensor that a step assigns.
    Assigned,
    /// Nothing: a list of dims after `over:`.
    List,
}

/// The dims that subscripts name: today each is the name of one dim.
///
/// # Errors
/// The first subscript that is another expression, with the way around it.
pub fn dims(brackets: Brackets, subscripts: &[Node]) -> Result<Vec<Name>, (Place, Problem)> {
    let dim = |node: &Node| match &node.ast {
        Ast::Word(name) => Ok(Name { place: node.place, text: name.clone() }),
        _ => Err((node.place, Problem::Syntax(instead(brackets, node)))),
    };
    subscripts.iter().map(dim).collect()
}

/// Whether every tensor in an expression is read at subscripts that it can be read at.
///
/// # Errors
/// Those of [`dims`].
pub fn check(expression: &Node) -> Result<(), (Place, Problem)> {
    if let Ast::Access(tensor, subscripts) = &expression.ast {
        dims(Brackets::Read(tensor), subscripts)?;
    }
    expression.parts().into_iter().try_for_each(check)
}

/// Why an expression is no subscript, and what to write in its place.
fn instead(brackets: Brackets, subscript: &Node) -> String {
    let tensor = match brackets {
        Brackets::List => return format!("`{subscript}` is no dim: after `over:` stand names of dims"),
        Brackets::Assigned => {
            return format!(
                "`{subscript}` is no subscript on the left: a step assigns a whole tensor, and names a dim for each of its axes; what differs \
                 from place to place is picked on the right, as in `where(t == 0, …, …)`"
            );
        }
        Brackets::Read(tensor) => tensor,
    };
    match &subscript.ast {
        Ast::Slice(..) => format!(
            "`{subscript}` is no subscript: each is the name of one dim, all of which is read; of a part of it make a tensor with a dim of its \
             own, or mask the rest, as in `where(t < 3, {tensor}[…, t], 0)`"
        ),
        Ast::Access(..) => format!(
            "`{subscript}` is no subscript: each is the name of one dim, and no tensor is read at places that another one holds; compare the \
             places instead, `sum(where({subscript} == v, {tensor}[…, v, …], 0), over: v)`, with `v` the dim that `{tensor}` has there"
        ),
        Ast::Number(_) => format!(
            "`{subscript}` is no subscript: each is the name of one dim; one place along it is picked by a comparison, \
             `sum(where(t == {subscript}, {tensor}[…, t, …], 0), over: t)`, with `t` the dim that `{tensor}` has there"
        ),
        _ => format!(
            "`{subscript}` is no subscript: each is the name of one dim, so there are no windows and no shifts; let `{tensor}` be given with the \
             window as a dim of its own, as in `{tensor}: [b, c, p, r]`, and write a recurrence out, with a step for each time: \
             `h1[b,u] = … h0[b,v] …`"
        ),
    }
}
