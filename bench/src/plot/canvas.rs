//! Drawing in pixels: the few primitives that all figures share, on a plotters drawing area.

use super::PlotError;
use plotters::coord::Shift;
use plotters::drawing::DrawingAreaErrorKind;
use plotters::prelude::*;
use plotters::style::FontFamily;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use sdfg::Class;

pub const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
pub const MUTED: RGBColor = RGBColor(0x65, 0x6d, 0x76);
pub const GRID: RGBColor = RGBColor(0xe1, 0xe5, 0xea);
pub const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub const BEFORE: RGBColor = RGBColor(0xa8, 0xb1, 0xbb);
pub const OURS: RGBColor = RGBColor(0x2f, 0x6f, 0xdb);
pub const CHOSEN: RGBColor = RGBColor(0xc9, 0x2a, 0x6b);
pub const BEST: RGBColor = RGBColor(0x0b, 0x8a, 0x8f);
pub const RULE: RGBColor = RGBColor(0xe0, 0x9b, 0x1a);

pub fn class_colour(class: Class) -> RGBColor {
    match class {
        Class::Contraction => RGBColor(0x3b, 0x74, 0xc4),
        Class::Normalization => RGBColor(0xdb, 0x7b, 0x2b),
        Class::Elementwise => RGBColor(0x3d, 0x9e, 0x6c),
    }
}

const FAMILY: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif";

/// Mean width of a character over its font size, in the fonts of [`FAMILY`].
const CHARACTER: f64 = 0.6;

pub fn text_width(text: &str, size: i32) -> i32 {
    (text.chars().count() as f64 * f64::from(size) * CHARACTER).ceil() as i32
}

/// Cut to `pixels`, an ellipsis at the end.
pub fn fitted(text: &str, size: i32, pixels: i32) -> String {
    if text_width(text, size) <= pixels {
        return text.to_string();
    }
    let keep = (f64::from(pixels) / (f64::from(size) * CHARACTER)) as usize;
    text.chars().take(keep.saturating_sub(1)).chain(['…']).collect()
}

#[derive(Clone, Copy)]
pub enum Anchor {
    Left,
    Middle,
    Right,
}

pub struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

/// A figure of `width` × `height` pixels with a title, painted by `paint`, as the text of an SVG.
pub fn figure(width: i32, height: i32, title: &str, paint: impl FnOnce(&Canvas<'_>) -> Result<(), PlotError>) -> Result<String, PlotError> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (width.max(1) as u32, height.max(1) as u32)).into_drawing_area();
        let canvas = Canvas { area };
        done(canvas.area.fill(&PAPER))?;
        canvas.bold(24, 22, 15, INK, Anchor::Left, title)?;
        paint(&canvas)?;
        done(canvas.area.present())?;
    }
    Ok(svg)
}

fn done<E: std::error::Error + Send + Sync>(outcome: Result<(), DrawingAreaErrorKind<E>>) -> Result<(), PlotError> {
    outcome.map_err(|e| PlotError::Backend(e.to_string()))
}

impl<'a> Canvas<'a> {
    fn draw<E>(&self, element: &E) -> Result<(), PlotError>
    where
        for<'b> &'b E: plotters::element::PointCollection<'b, (i32, i32)>,
        E: plotters::element::Drawable<SVGBackend<'a>>,
    {
        done(self.area.draw(element))
    }

    pub fn rect(&self, (x, y): (i32, i32), (width, height): (i32, i32), colour: impl Into<RGBAColor>) -> Result<(), PlotError> {
        self.draw(&Rectangle::new([(x, y), (x + width, y + height)], colour.into().filled()))
    }

    /// A bar: filled if its value was measured, a light body with an outline if it was predicted.
    pub fn bar(&self, at: (i32, i32), size: (i32, i32), colour: RGBColor, measured: bool) -> Result<(), PlotError> {
        if measured {
            return self.rect(at, size, colour);
        }
        self.rect(at, size, colour.mix(0.18))?;
        self.draw(&Rectangle::new([at, (at.0 + size.0, at.1 + size.1)], ShapeStyle::from(&colour).stroke_width(1)))
    }

    pub fn line(&self, points: &[(i32, i32)], colour: impl Into<RGBAColor>, width: u32) -> Result<(), PlotError> {
        let style = ShapeStyle { color: colour.into(), filled: false, stroke_width: width };
        self.draw(&PathElement::new(points.to_vec(), style))
    }

    /// A straight line in dashes, for what was predicted.
    pub fn dashes(&self, from: (i32, i32), to: (i32, i32), colour: RGBColor, width: u32) -> Result<(), PlotError> {
        let (dx, dy) = (f64::from(to.0 - from.0), f64::from(to.1 - from.1));
        let count = (dx.hypot(dy) / 10.0).ceil().max(1.0) as i32;
        let at = |part: f64| (from.0 + (dx * part).round() as i32, from.1 + (dy * part).round() as i32);
        for n in 0..count {
            let begin = f64::from(n) / f64::from(count);
            self.line(&[at(begin), at(begin + 0.6 / f64::from(count))], colour, width)?;
        }
        Ok(())
    }

    pub fn polygon(&self, points: Vec<(i32, i32)>, colour: impl Into<RGBAColor>) -> Result<(), PlotError> {
        self.draw(&Polygon::new(points, colour.into()))
    }

    pub fn dot(&self, at: (i32, i32), radius: i32, colour: impl Into<RGBAColor>, filled: bool) -> Result<(), PlotError> {
        self.draw(&Circle::new(at, radius, ShapeStyle { color: colour.into(), filled, stroke_width: 2 }))
    }

    pub fn diamond(&self, (x, y): (i32, i32), radius: i32, colour: RGBColor) -> Result<(), PlotError> {
        self.polygon(vec![(x, y - radius), (x + radius, y), (x, y + radius), (x - radius, y)], colour)
    }

    pub fn text(&self, x: i32, y: i32, size: i32, colour: RGBColor, anchor: Anchor, text: &str) -> Result<(), PlotError> {
        self.write((x, y), size, colour, anchor, text, FontStyle::Normal, FontTransform::None)
    }

    pub fn bold(&self, x: i32, y: i32, size: i32, colour: RGBColor, anchor: Anchor, text: &str) -> Result<(), PlotError> {
        self.write((x, y), size, colour, anchor, text, FontStyle::Bold, FontTransform::None)
    }

    /// Reads from bottom to top, centred at the place.
    pub fn upright(&self, x: i32, y: i32, size: i32, colour: RGBColor, text: &str) -> Result<(), PlotError> {
        self.write((x, y), size, colour, Anchor::Middle, text, FontStyle::Normal, FontTransform::Rotate270)
    }

    #[expect(clippy::too_many_arguments, reason = "the one place where every property of a text comes together")]
    fn write(
        &self,
        at: (i32, i32),
        size: i32,
        colour: RGBColor,
        anchor: Anchor,
        text: &str,
        style: FontStyle,
        transform: FontTransform,
    ) -> Result<(), PlotError> {
        // The backend divides sizes by 1.24, its ratio of line to letter height.
        let font = FontDesc::new(FontFamily::Name(FAMILY), f64::from(size) * 1.24, style).transform(transform);
        let horizontal = match anchor {
            Anchor::Left => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::Right => HPos::Right,
        };
        let style = TextStyle::from(font).color(&colour).pos(Pos::new(horizontal, VPos::Center));
        // XML allows no control characters, not even escaped.
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        self.draw(&Text::new(text, at, style))
    }

    /// Coloured squares with their names from `x` to the right.
    pub fn legend(&self, x: i32, y: i32, entries: &[(&str, RGBColor, bool)]) -> Result<(), PlotError> {
        let mut x = x;
        for (name, colour, filled) in entries {
            self.bar((x, y - 5), (11, 11), *colour, *filled)?;
            self.text(x + 17, y, 12, MUTED, Anchor::Left, name)?;
            x += 17 + text_width(name, 12) + 18;
        }
        Ok(())
    }

    /// The words that every figure with both kinds carries.
    pub fn origins(&self, x: i32, y: i32) -> Result<(), PlotError> {
        self.legend(x, y, &[("measured", MUTED, true), ("predicted", MUTED, false)])
    }
}
