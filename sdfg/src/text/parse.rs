//! Text → program. Nothing is checked here beyond the form: a program that can be read may still be invalid.

use super::TextError;
use super::expression::{expr, scalar};
use super::lex::{self, Expect};
use super::print::{lifetime_name, relation_sign, role_name, storage_name, usual_grad, usual_lifetime};
use crate::assemble::{self, AssembleError};
use crate::bounds::Bounds;
use crate::data::{Container, Dtype, Lifetime, Origin, Role, Storage, View};
use crate::graph::{Condition, Relation, Sdfg, Transition};
use crate::library::operator::{Field, FieldKind, Fields};
use crate::library::{DEFINITIONS, Op};
use crate::memlet::{Combine, Fill, Memlet, Range};
use crate::node::{
    Direction, Edge, EdgeId, Index, IndexKind, Library, Loop, Map, Nested, Node, NodeId, Port, Slice, StateId, Tasklet, Vertex,
};
use crate::scalar::Scalar;
use crate::state::State;
use crate::symbol::Expr;
use crate::syntax::{Cursor, Token};

const ROLES: [Role; 5] = [Role::Input, Role::Parameter, Role::Output, Role::Gradient, Role::Transient];
const STORAGES: [Storage; 4] = [Storage::Heap, Storage::Local, Storage::Shared, Storage::Register];
const LIFETIMES: [Lifetime; 3] = [Lifetime::Scope, Lifetime::Program, Lifetime::Persistent];
const RELATIONS: [Relation; 6] = [Relation::Lt, Relation::Le, Relation::Eq, Relation::Ne, Relation::Ge, Relation::Gt];

/// Reads a program from the text form. It is not validated.
pub fn parse(text: &str) -> Result<Sdfg, TextError> {
    let mut cursor = lex::cursor(text)?;
    let program = program(&mut cursor)?;
    cursor.want_end()?;
    Ok(program)
}

/// One of the words, tried in order.
fn word<T: Copy>(cursor: &mut Cursor, of: &[T], show: impl Fn(T) -> &'static str) -> Option<T> {
    of.iter().copied().find(|item| cursor.eat_word(show(*item)))
}

fn words<T: Copy>(of: &[T], show: impl Fn(T) -> &'static str) -> String {
    of.iter().map(|item| format!("`{}`", show(*item))).collect::<Vec<_>>().join(", ")
}

/// A handle such as `n12`.
fn handle(cursor: &mut Cursor, letter: char, what: &str) -> Result<u32, TextError> {
    let found = match cursor.peek() {
        Token::Name { text, quoted: false } => {
            // `n01` would be a second spelling of `n1`.
            text.strip_prefix(letter).filter(|digits| *digits == "0" || !digits.starts_with('0')).and_then(|digits| digits.parse().ok())
        }
        _ => None,
    };
    let found = found.ok_or_else(|| cursor.expected(format!("the handle of {what}, such as `{letter}0`")))?;
    cursor.advance();
    Ok(found)
}

fn node_handle(cursor: &mut Cursor) -> Result<NodeId, TextError> {
    handle(cursor, 'n', "a node").map(NodeId)
}

/// `name=value`, or a name alone that stands for itself.
fn pair<T>(
    cursor: &mut Cursor,
    what: &str,
    value: impl FnOnce(&mut Cursor) -> Result<T, TextError>,
    itself: impl FnOnce(&str) -> T,
) -> Result<(String, T), TextError> {
    let name = cursor.want_name(what)?;
    let value = if cursor.eat("=") { value(cursor)? } else { itself(&name) };
    Ok((name, value))
}

/// At least one item; items are separated by commas.
fn some<T>(cursor: &mut Cursor, mut item: impl FnMut(&mut Cursor) -> Result<T, TextError>) -> Result<Vec<T>, TextError> {
    let mut items = vec![item(cursor)?];
    while cursor.eat(",") {
        items.push(item(cursor)?);
    }
    Ok(items)
}

fn located(cursor: &mut Cursor, error: AssembleError) -> TextError {
    cursor.wrong(format!("handles that agree: {error}"))
}

fn program(cursor: &mut Cursor) -> Result<Sdfg, TextError> {
    cursor.want_word("program")?;
    let mut program = Sdfg::new(cursor.want_name("the name of the program")?);
    if cursor.eat_word("about") {
        program.about = cursor.want_name("a sentence in quotes")?;
    }
    program.tf32 = cursor.eat_word("tf32");
    program.winograd = cursor.eat_word("winograd");
    cursor.want("{")?;
    let (mut states, mut transitions) = (Vec::new(), Vec::new());
    while !cursor.eat("}") {
        if cursor.eat_word("sizes") {
            program.sizes.extend(some(cursor, |c| {
                let name = c.want_name("a symbol")?;
                c.want("=")?;
                Ok((name, c.integer("an integer of at most 64 bits")?))
            })?);
        } else if cursor.eat_word("dims") {
            program.dims.extend(some(cursor, |c| pair(c, "a dim", expr, |s| Expr::sym(s)))?);
        } else if cursor.eat_word("state") {
            let id = StateId(handle(cursor, 's', "a state")?);
            let name = cursor.want_name("the name of the state")?;
            states.push((id, state(cursor, name)?));
        } else if let Some(role) = word(cursor, &ROLES, role_name) {
            let container = container(cursor, role)?;
            if program.containers.contains_key(&container.name) {
                return Err(cursor.wrong(format!("another name, because `{}` is already declared", container.name)));
            }
            program.add_container(container);
        } else if matches!(cursor.peek(), Token::Name { quoted: false, text } if text.starts_with('s')) {
            let from = StateId(handle(cursor, 's', "a state")?);
            cursor.want("->")?;
            let to = StateId(handle(cursor, 's', "a state")?);
            transitions.push((from, to, transition(cursor)?));
        } else {
            return Err(cursor.expected(format!(
                "`sizes`, `dims`, a container ({}), `state`, a transition such as `s0 -> s1` or `}}`",
                words(&ROLES, role_name)
            )));
        }
    }
    assemble::states(&mut program, states, transitions).map_err(|e| located(cursor, e))?;
    Ok(program)
}

fn container(cursor: &mut Cursor, role: Role) -> Result<Container, TextError> {
    let name = cursor.want_name("the name of a container")?;
    cursor.want("[")?;
    let dims = cursor.list("]", |c| c.want_name("a dim"))?;
    let dtype = word(cursor, &Dtype::ALL, Dtype::name);
    let dtype = dtype.ok_or_else(|| cursor.expected(format!("an element type ({})", words(&Dtype::ALL, Dtype::name))))?;
    let storage = word(cursor, &STORAGES, storage_name).unwrap_or(Storage::Heap);
    let mut lifetime = usual_lifetime(role, storage);
    if cursor.eat_word("lifetime") {
        let said = word(cursor, &LIFETIMES, lifetime_name);
        lifetime = said.ok_or_else(|| cursor.expected(words(&LIFETIMES, lifetime_name)))?;
    }
    let grad = cursor.eat_word("grad") || (!cursor.eat_word("nograd") && usual_grad(role));
    let mut view = None;
    if cursor.eat_word("view") {
        cursor.want_word("of")?;
        let of = cursor.want_name("the name of the container that is viewed")?;
        cursor.want("[")?;
        view = Some(View { of, offsets: cursor.list("]", expr)? });
    }
    let range = if cursor.eat_word("within") { Some(bounds(cursor)?) } else { None };
    let initial = if cursor.eat_word("initially") { Some(Fill(cursor.float()?)) } else { None };
    let replaces = if cursor.eat_word("replaces") { Some(cursor.want_name("the name of a parameter")?) } else { None };
    let origin = origin(cursor)?;
    Ok(Container { name, dims, dtype, role, storage, lifetime, grad, view, range, initial, replaces, origin })
}

fn bounds(cursor: &mut Cursor) -> Result<Bounds, TextError> {
    let without_low = cursor.eat("(");
    if !without_low {
        cursor.want("[")?;
    }
    let low = scalar(cursor)?;
    cursor.want(",")?;
    let high = scalar(cursor)?;
    let without_high = cursor.eat(")");
    if !without_high {
        cursor.want("]")?;
    }
    Ok(Bounds { low, high, open: [without_low, without_high] })
}

fn origin(cursor: &mut Cursor) -> Result<Option<Origin>, TextError> {
    if !cursor.eat_word("from") {
        return Ok(None);
    }
    let file = cursor.want_name("the name of a file")?;
    cursor.want(":")?;
    let line = cursor.integer("a line number")?;
    cursor.want(":")?;
    Ok(Some(Origin { file, line, column: cursor.integer("a column number")? }))
}

fn transition(cursor: &mut Cursor) -> Result<Transition, TextError> {
    let mut transition = Transition::default();
    if cursor.eat_word("if") {
        let left = expr(cursor)?;
        let relation = RELATIONS.into_iter().find(|r| cursor.eat(relation_sign(*r)));
        let relation = relation.ok_or_else(|| cursor.expected(words(&RELATIONS, relation_sign)))?;
        transition.condition = Some(Condition { left, relation, right: expr(cursor)? });
    }
    if cursor.eat_word("set") {
        transition.assignments = some(cursor, |c| {
            let name = c.want_name("a symbol")?;
            c.want("=")?;
            Ok((name, expr(c)?))
        })?;
    }
    Ok(transition)
}

fn state(cursor: &mut Cursor, name: String) -> Result<State, TextError> {
    cursor.want("{")?;
    let (mut nodes, mut edges) = (Vec::new(), Vec::new());
    while !cursor.eat("}") {
        match cursor.peek() {
            Token::Name { text, quoted: false } if text.starts_with('e') => {
                let id = EdgeId(handle(cursor, 'e', "an edge")?);
                cursor.want("=")?;
                let (from, out) = end(cursor)?;
                cursor.want("->")?;
                let (to, into) = end(cursor)?;
                cursor.want_word("moves")?;
                edges.push((id, from, to, Edge { from: out, to: into, memlet: memlet(cursor)? }));
            }
            Token::Name { text, quoted: false } if text.starts_with('n') => {
                let id = node_handle(cursor)?;
                let scope = if cursor.eat_word("in") { Some(node_handle(cursor)?) } else { None };
                cursor.want("=")?;
                nodes.push((id, Vertex { node: node(cursor)?, scope }));
            }
            _ => return Err(cursor.expected("a node such as `n0 = …`, an edge such as `e0 = n0 -> n1 …` or `}`")),
        }
    }
    assemble::state(name, nodes, edges).map_err(|e| located(cursor, e))
}

fn end(cursor: &mut Cursor) -> Result<(NodeId, String), TextError> {
    let node = node_handle(cursor)?;
    let connector = if cursor.eat(":") { cursor.want_name("a connector")? } else { String::new() };
    Ok((node, connector))
}

fn range(cursor: &mut Cursor) -> Result<Range, TextError> {
    let start = expr(cursor)?;
    if !cursor.eat(":") {
        return Ok(Range::At(start));
    }
    let stop = expr(cursor)?;
    let step = if cursor.eat(":") { expr(cursor)? } else { Expr::Int(1) };
    Ok(Range::Span { start, stop, step })
}

fn memlet(cursor: &mut Cursor) -> Result<Memlet, TextError> {
    let data = cursor.want_name("the name of a container")?;
    cursor.want("[")?;
    let mut memlet = Memlet::new(data, cursor.list("]", range)?);
    if cursor.eat_word("volume") {
        memlet.volume = expr(cursor)?;
    }
    if cursor.eat_word("wcr") {
        memlet.wcr = Some(combine(cursor)?);
    }
    memlet.dynamic = cursor.eat_word("dynamic");
    if cursor.eat_word("fill") {
        memlet.fill = Some(cursor.float()?);
    }
    Ok(memlet)
}

fn combine(cursor: &mut Cursor) -> Result<Combine, TextError> {
    let found = word(cursor, &Combine::ALL, Combine::name);
    found.ok_or_else(|| cursor.expected(format!("a combine ({})", words(&Combine::ALL, Combine::name))))
}

fn node(cursor: &mut Cursor) -> Result<Node, TextError> {
    if cursor.eat_word("access") {
        return cursor.want_name("the name of a container").map(Node::Access);
    }
    if cursor.eat_word("exit") {
        return Ok(Node::MapExit { entry: node_handle(cursor)? });
    }
    if cursor.eat_word("map") {
        let label = cursor.want_name("the label of the map")?;
        cursor.want("[")?;
        return Ok(Node::MapEntry(Map { label, indices: cursor.list("]", index)? }));
    }
    if cursor.eat_word("tasklet") {
        return tasklet(cursor).map(Node::Tasklet);
    }
    if cursor.eat_word("library") {
        return library(cursor).map(Node::Library);
    }
    if cursor.eat_word("nested") {
        let name = cursor.want_name("the name of the nested program")?;
        cursor.want("[")?;
        let symbols = cursor.list("]", |c| pair(c, "a symbol", expr, |s| Expr::sym(s)))?.into_iter().collect();
        let repeat = if cursor.eat_word("for") { Some(repeat(cursor)?) } else { None };
        let program = Box::new(cursor.nested(10, program)?);
        return Ok(Node::Nested(Nested { name, program, symbols, repeat }));
    }
    Err(cursor.expected("`access`, `map`, `exit`, `tasklet`, `library` or `nested`"))
}

/// `t over t reversed (h.before is h[0 at t-1 else 0])`.
fn repeat(cursor: &mut Cursor) -> Result<Loop, TextError> {
    let index = cursor.want_name("the index of the loop")?;
    cursor.want_word("over")?;
    let dim = cursor.want_name("a dim")?;
    let reversed = cursor.eat_word("reversed");
    cursor.want("(")?;
    let slices = cursor.list(")", slice)?.into_iter().collect();
    Ok(Loop { index, dim, reversed, slices })
}

fn slice(cursor: &mut Cursor) -> Result<(String, Slice), TextError> {
    let inner = cursor.want_name("a container of the body")?;
    cursor.want_word("is")?;
    let data = cursor.want_name("the name of a container")?;
    cursor.want("[")?;
    let (mut at, mut fill) = (None, None);
    if !cursor.sees("]") && !matches!(cursor.peek(), Token::Name { quoted: false, text } if text == "else") {
        let axis: u32 = cursor.integer("the number of a dimension")?;
        cursor.want_word("at")?;
        at = Some((axis as usize, expr(cursor)?));
    }
    if cursor.eat_word("else") {
        fill = Some(Fill(cursor.float()?));
    }
    cursor.want("]")?;
    Ok((inner, Slice { data, at, fill }))
}

fn index(cursor: &mut Cursor) -> Result<Index, TextError> {
    let name = cursor.want_name("an index")?;
    cursor.want("=")?;
    let Range::Span { start, stop, step } = range(cursor)? else { return Err(cursor.expected("`:` and where the index stops")) };
    let dim = if cursor.eat_word("over") { cursor.want_name("a dim")? } else { name.clone() };
    let kind = if cursor.eat_word("reduction") {
        IndexKind::Reduction
    } else if cursor.eat_word("sequential") {
        IndexKind::Sequential
    } else {
        IndexKind::Independent
    };
    Ok(Index { name, dim, start, stop, step, kind })
}

fn tasklet(cursor: &mut Cursor) -> Result<Tasklet, TextError> {
    let name = cursor.want_name("the name of the tasklet")?;
    cursor.want("{")?;
    let mut code: Vec<(String, Scalar)> = Vec::new();
    while !cursor.eat("}") {
        let to = cursor.want_name("an output connector or `}`")?;
        cursor.want("=")?;
        code.push((to, scalar(cursor)?));
        if !cursor.eat(";") && !cursor.sees("}") {
            return Err(cursor.expected("an operator, `;` or `}`"));
        }
    }
    let operator = if cursor.eat_word("of") { cursor.want_name("the name of an operation")? } else { name.clone() };
    Ok(Tasklet { name, code, operator, origin: origin(cursor)? })
}

fn library(cursor: &mut Cursor) -> Result<Library, TextError> {
    let name = cursor.want_name("the name of the operation")?;
    let pass = if cursor.eat_word("forward") {
        Direction::Forward
    } else if cursor.eat_word("backward") {
        Direction::Backward
    } else {
        return Err(cursor.expected("`forward` or `backward`"));
    };
    cursor.want("[")?;
    let indices = cursor.list("]", |c| pair(c, "an index", |c| c.want_name("a dim"), str::to_string))?.into_iter().collect();
    cursor.want("(")?;
    let inputs = cursor.list(")", port)?;
    cursor.want("->")?;
    cursor.want("(")?;
    let outputs = cursor.list(")", port)?;
    Ok(Library { name, op: op(cursor)?, indices, inputs, outputs, pass, origin: origin(cursor)? })
}

fn port(cursor: &mut Cursor) -> Result<Port, TextError> {
    let connector = cursor.want_name("a connector")?;
    cursor.want("[")?;
    let (mut subscripts, mut fill) = (Vec::new(), None);
    while !cursor.eat("]") {
        if cursor.eat_word("else") {
            fill = Some(Fill(cursor.float()?));
            cursor.want("]")?;
            break;
        }
        if !subscripts.is_empty() {
            cursor.want(",")?;
        }
        subscripts.push(expr(cursor)?);
    }
    Ok(Port { connector, subscripts, fill })
}

fn op(cursor: &mut Cursor) -> Result<Op, TextError> {
    let found = DEFINITIONS.iter().find(|definition| cursor.eat_word(definition.keyword));
    let Some(definition) = found else {
        let (last, others) = DEFINITIONS.split_last().map_or(("", &[][..]), |(last, others)| (last.keyword, others));
        let others: Vec<String> = others.iter().map(|definition| format!("`{}`", definition.keyword)).collect();
        return Err(cursor.expected(format!("an operator: {} or `{last}`", others.join(", "))));
    };
    let fields = definition.shape.iter().map(|shape| field(cursor, *shape)).collect::<Result<Vec<Field>, TextError>>()?;
    (definition.build)(&mut Fields::new(fields)).ok_or_else(|| cursor.expected(format!("the fields of `{}`", definition.keyword)))
}

fn field(cursor: &mut Cursor, shape: FieldKind) -> Result<Field, TextError> {
    Ok(match shape {
        FieldKind::Label => Field::Label(cursor.want_name("a label")?),
        FieldKind::Combine => Field::Combine(combine(cursor)?),
        FieldKind::Code(word) => {
            cursor.want_word(word)?;
            Field::Code(scalar(cursor)?)
        }
        FieldKind::Over => {
            cursor.want_word("over")?;
            cursor.want("[")?;
            Field::Over(cursor.list("]", |c| c.want_name("an index"))?)
        }
        FieldKind::Number(word) => {
            cursor.want_word(word)?;
            Field::Number(cursor.float()?)
        }
    })
}
