//! Figures, one SVG each, drawn through plotters.
//!
//! Every figure names its units on the axes and shows which marks were predicted (hollow) and which measured (filled).
//! Text stays text, so a browser's own sans-serif is used and no font is bundled. The colours are few and fixed: the
//! report's style sheet finds them by value and turns them for dark mode.

mod axis;
mod canvas;
mod classes;
mod config_graph;
mod losses;
mod memory;
mod operators;
mod roofline;
mod totals;
mod violins;
mod waterfall;

pub use classes::classes;
pub use config_graph::config_graph;
pub use losses::losses;
pub use memory::memory;
pub use operators::operators;
pub use roofline::roofline;
pub use totals::totals;
pub use violins::violins;
pub use waterfall::waterfall;

#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    #[error("nothing to draw in figure {figure}: leave it out or measure first")]
    Empty { figure: &'static str },
    #[error("figure {figure} was given {value}, which has no place on its {scale} axis")]
    OffScale { figure: &'static str, value: f64, scale: &'static str },
    #[error("figure {figure}: {source}")]
    Stats {
        figure: &'static str,
        #[source]
        source: crate::stats::StatsError,
    },
    #[error("the drawing backend failed: {0}")]
    Backend(String),
}
