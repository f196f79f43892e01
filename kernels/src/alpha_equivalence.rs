//! Alpha-equivalence of kernels: queries, keys and values are projected by one and the same code.
//!
//! Two kernels are of one class if a one-to-one renaming of containers, indices and connectors turns one into the other, at the same sizes.
//! Their configurations then correspond, and the time of one is the time of the other. Names are replaced by numbers, in the order in which
//! the program has them, on the program itself ([`Unit::renamed`]).

use crate::codegen_version::codegen_version;
use crate::kernel::KernelSpec;
use indexmap::IndexSet;
use sdfg::rename::NameKind;
use sdfg::{Container, Direction, Expr, Unit, View};
use std::fmt::Write;

/// A kernel without its names.
#[derive(Clone, Debug)]
pub struct KernelClass {
    hash: String,
    names: Numbering,
}

/// The numbers of names, of each kind in the order of their first use.
#[derive(Clone, Debug, Default)]
struct Numbering {
    containers: IndexSet<String>,
    indices: IndexSet<String>,
    connectors: IndexSet<String>,
    symbols: IndexSet<String>,
    streams: IndexSet<String>,
}

impl Numbering {
    /// The number of a name in place of it. Dims count by their sizes, and titles not at all.
    fn number(&mut self, spec: &KernelSpec, kind: NameKind, name: &str) -> String {
        let (letter, known) = match kind {
            NameKind::Container => ('c', &mut self.containers),
            NameKind::Index => ('i', &mut self.indices),
            NameKind::Connector => ('o', &mut self.connectors),
            NameKind::Symbol => ('s', &mut self.symbols),
            NameKind::Stream => ('r', &mut self.streams),
            NameKind::Dim => return size(spec, name),
            NameKind::Title => return String::new(),
        };
        format!("{letter}{}", known.insert_full(name.to_string()).0)
    }
}

impl KernelClass {
    /// Of a scope or a contraction; `None` for other units.
    pub fn of(spec: &KernelSpec) -> Option<Self> {
        let mut names = Numbering::default();
        let mut unit = spec.unit.renamed(&mut |kind, name| names.number(spec, kind, name))?;
        if let Unit::Operation(operation) = &mut unit {
            // The same contraction takes as long in either pass.
            operation.pass = Direction::Forward;
        }
        let mut text = format!("{}\n{unit:?}\ntf32 {} winograd {}", codegen_version(), spec.tf32, spec.winograd);
        let mut next = 0;
        // A view adds the container that it is a view of.
        while let Some(name) = names.containers.get_index(next).cloned() {
            text += &described(spec, spec.containers.get(&name)?, &mut names);
            next += 1;
        }
        for symbol in &names.symbols {
            let _ = write!(text, "\n{}", size(spec, symbol));
        }
        Some(KernelClass { hash: blake3::hash(text.as_bytes()).to_hex().to_string(), names })
    }

    /// A fingerprint of one of the kernel's configurations that is the same for the corresponding configuration of every kernel of the
    /// class; `identity` is that of [`crate::ConfigSpace::identity`].
    pub fn fingerprint(&self, identity: &str) -> String {
        let mut text = format!("{}\n", self.hash);
        words(identity, |word, is_name| {
            let number = if is_name { self.numbered(word) } else { None };
            text += number.as_deref().unwrap_or(word);
        });
        blake3::hash(text.as_bytes()).to_hex()[..32].to_string()
    }

    /// What stands for a word of an identity: an index, an index with what lowering appends to its name (`p_2`), or a container.
    fn numbered(&self, word: &str) -> Option<String> {
        let of = |word: &str| {
            let (container, index) = (self.names.containers.get_index_of(word), self.names.indices.get_index_of(word));
            // A container and an index may have one name.
            (container.is_some() || index.is_some()).then(|| format!("#{container:?}{index:?}"))
        };
        of(word).or_else(|| word.rsplit_once('_').and_then(|(name, part)| Some(format!("{}_{part}", of(name)?))))
    }
}

/// Everything about a container that a kernel's time depends on.
fn described(spec: &KernelSpec, container: &Container, names: &mut Numbering) -> String {
    let Container { name, dims, dtype, role: _, storage, lifetime: _, grad: _, view, range: _, initial: _, replaces: _, origin: _ } =
        container;
    let shape: Vec<String> = dims.iter().map(|dim| size(spec, dim)).collect();
    let view = view.as_ref().map(|View { of, offsets }| {
        let offsets: Vec<String> = offsets.iter().map(|e| offset(spec, e)).collect();
        (names.number(spec, NameKind::Container, of), offsets)
    });
    format!("\n{shape:?} {dtype} {storage:?} {view:?} {} {}", spec.hands_back(name), spec.constants.contains(name))
}

/// The size of a dim or symbol; one without a size counts by its name.
fn size(spec: &KernelSpec, name: &str) -> String {
    spec.size(name).map_or_else(|_| name.to_string(), |size| size.to_string())
}

fn offset(spec: &KernelSpec, e: &Expr) -> String {
    e.eval(&spec.sizes).map_or_else(|_| e.to_string(), |value| value.to_string())
}

/// Splits an identity into words (letters, digits, `_` and `.`) and what stands between them, and says which may be names: neither numbers
/// nor the keys of knobs, after which an equals sign comes.
fn words(text: &str, mut each: impl FnMut(&str, bool)) {
    let of_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = of_word(first);
        let length = rest.find(|c| of_word(c) != is_word).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        each(word, is_word && !first.is_ascii_digit() && first != '.' && !after.starts_with('='));
        rest = after;
    }
}
