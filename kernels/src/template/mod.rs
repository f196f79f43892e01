//! Schedule templates: the compact text form of one way to run a kernel. "FusionStitching" (arXiv:1911.11576), section 5.2 and figure 1c.
//!
//! ```text
//! y.exp[GRID,WARP]S; y[GRID,WARP]; cta_num=128; cta_size=1;
//! ```
//!
//! A template says of each operator that writes memory how its dims are walked, and whether its values are held on chip. It says nothing of
//! layouts, nor in which order loops of one kind stand, so several configurations mean one template. Templates are not read off knobs: each
//! target tells what its emitter makes of a configuration (`template.rs` of a target), and [`TemplateSpace`] finds the configurations that
//! mean a template.

mod grammar;
mod meaning;
mod operators;
mod parse;
mod space;

pub use grammar::{AttributeKind, DimAttribute, OperatorSchedule, ScheduleTemplate};
pub(crate) use meaning::{LoopMeaning, template};
pub use operators::{KernelOperators, OperatorDims};
pub use parse::TemplateSyntaxError;
pub use space::{MeantTemplate, TemplateError, TemplateSpace};

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::config::KernelConfig;

/// The template that a target's code of a kernel under a configuration means; `None` where a library has the kernel, or its code is no loop
/// nest of the grammar.
pub type TemplateOf = fn(&KernelSpec, &KernelConfig) -> Result<Option<ScheduleTemplate>, KernelError>;
