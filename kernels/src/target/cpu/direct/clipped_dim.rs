//! A dim of a factor that windows leave, and which of their steps lie inside.

use sdfg::Expr;

/// A dim that windows leave, subscripted by `first + step · place + window.step · window`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClippedDim {
    pub subscript: Expr,
    pub size: i64,
    /// The subscript at the first place and the first step of the window.
    pub first: i64,
    /// The index of the result that moves the window, if it has more than one iteration, and how far.
    pub place: Option<(String, i64)>,
    /// The summed index, how far it moves, and its iterations.
    pub window: (String, i64, i64),
}

impl ClippedDim {
    /// Whether an axis of these indices moves the window.
    pub fn is_placed_by(&self, axis: &[String]) -> bool {
        self.place.as_ref().is_some_and(|(index, _)| axis.contains(index))
    }

    /// Whether an axis walks the window.
    pub fn is_walked_by(&self, axis: &[String]) -> bool {
        axis.contains(&self.window.0)
    }

    pub fn moves_with(&self, axis: &[String]) -> bool {
        self.is_placed_by(axis) || self.is_walked_by(axis)
    }

    /// How far an iteration of an axis of the result moves the window.
    pub fn step_of(&self, axis: &[String]) -> i64 {
        self.place.as_ref().filter(|_| self.is_placed_by(axis)).map_or(0, |(_, step)| *step)
    }

    /// Of the window of row number `row` of a block whose first one begins at `position`, which steps lie inside.
    pub fn inside(&self, position: i64, row: i64) -> Vec<bool> {
        let step = self.place.as_ref().map_or(0, |(_, step)| *step);
        let (_, apart, count) = &self.window;
        (0..*count).map(|k| (0..self.size).contains(&(position + step * row + apart * k))).collect()
    }

    /// C of the first step of a window at `position` that lies inside, and of how many do.
    pub fn left(&self, position: &str) -> [String; 2] {
        let ((_, apart, count), size) = (&self.window, self.size);
        let by = apart.abs();
        // What must be stepped over before the container, and what is left of it.
        let (before, rest) = match *apart > 0 {
            true => (format!("-({position})"), format!("{size} - ({position})")),
            false => (format!("({position}) - {}", size - 1), format!("({position}) + 1")),
        };
        let first = format!("min_of((max_of({before}, 0) + {}) / {by}, {count})", by - 1);
        let end = format!("min_of((max_of({rest}, 0) + {}) / {by}, {count})", by - 1);
        [first, end]
    }
}
