//! The loss curve as a picture: every logged value light, and the running mean of LLaMA-Factory over it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::error::Result;
use oarlock::report::state::TrainerState;
use plotters::prelude::*;
use plotters::style::register_font;

/// A picture that could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw `{}`: {cause}", path.display())]
pub struct PlotError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong.
    pub cause: String,
}

impl From<PlotError> for crate::error::Error {
    fn from(error: PlotError) -> crate::error::Error {
        crate::error::Error::Other(Box::new(error))
    }
}

/// The picture in pixels.
const SIZE: (u32, u32) = (1280, 800);
/// It is drawn this many times larger, and every length with it.
const FINE: u32 = 2;
const FONT: &str = "plot";
const BLUE: RGBColor = RGBColor(0x1f, 0x77, 0xb4);
const INK: RGBColor = RGBColor(0x33, 0x3b, 0x46);
const FAINT: RGBColor = RGBColor(0x6b, 0x75, 0x82);
const GRID: RGBColor = RGBColor(0xe6, 0xea, 0xef);

/// An exponential mean that smooths more the more values there are: its weight is 1.8·(sigmoid(0.05·n) − 0.5).
pub fn smooth(values: &[f64]) -> Vec<f64> {
    let weight = 1.8 * (1.0 / (1.0 + (-0.05 * values.len() as f64).exp()) - 0.5);
    let mut last = values.first().copied().unwrap_or_default();
    let mean = |value: &f64| {
        last = last * weight + (1.0 - weight) * value;
        last
    };
    values.iter().map(mean).collect()
}

/// Draws the curves of a run into its folder.
pub fn of_run(dir: &Path, state: &TrainerState) -> Result<()> {
    draw(&dir.join("training_loss.png"), "Training loss", "loss", &state.series("loss"))?;
    let evals = state.series("eval_loss");
    draw(&dir.join("training_eval_loss.png"), "Evaluation loss", "eval_loss", &evals)?;
    let evals = state.series("eval_accuracy");
    draw(&dir.join("training_eval_accuracy.png"), "Evaluation accuracy", "eval_accuracy", &evals)?;
    Ok(())
}

/// Draws values over steps into a PNG file: `training_loss.png`, `training_eval_loss.png`. Values that are no
/// numbers are left out. `false` if there is nothing to draw.
pub fn draw(path: &Path, title: &str, label: &str, points: &[(u64, f64)]) -> Result<bool> {
    let points: Vec<(f64, f64)> =
        points.iter().filter(|(_, y)| y.is_finite()).map(|(x, y)| (*x as f64, *y)).collect();
    if points.is_empty() {
        return Ok(false);
    }
    register_fonts();
    let failed = |cause: String| PlotError { path: path.to_owned(), cause };
    let fine = drawn(title, label, &points).map_err(|error| failed(error.to_string()))?;
    let file = encoded(&softened(&fine)).map_err(|error| failed(error.to_string()))?;
    oarlock::report::replace(path, &file)?;
    Ok(true)
}

fn register_fonts() {
    static FONTS: Once = Once::new();
    // The machine may have no fonts at all, so the binary carries one. It is a font, so this cannot fail.
    FONTS.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            let _ = register_font(FONT, style, epaint_default_fonts::UBUNTU_LIGHT);
        }
    });
}

/// The pixels of the picture, still large.
fn drawn(
    title: &str,
    label: &str,
    points: &[(f64, f64)],
) -> std::result::Result<Vec<u8>, Box<dyn std::error::Error>> {
    let size = (SIZE.0 * FINE, SIZE.1 * FINE);
    let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
    let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
    area.fill(&WHITE)?;
    let mut xs = span(points.iter().map(|(x, _)| *x), 0.0);
    // A run that begins near 0 shows its beginning.
    if xs.start < 0.1 * xs.end {
        xs.start = 0.0;
    }
    let ys = span(points.iter().map(|(_, y)| *y), 0.06);
    let mut chart = ChartBuilder::on(&area)
        .margin_top(26 * FINE)
        .margin_right(44 * FINE)
        .margin_left(22 * FINE)
        .margin_bottom(18 * FINE)
        .caption(title, (FONT, 34 * FINE).into_font().color(&INK))
        .x_label_area_size(72 * FINE)
        .y_label_area_size(92 * FINE)
        .build_cartesian_2d(xs, ys.clone())?;
    let step = tick(&ys, 8);
    chart
        .configure_mesh()
        .set_all_tick_mark_size(7 * FINE)
        .x_labels(10)
        .y_labels(8)
        .bold_line_style(GRID.stroke_width(FINE))
        .light_line_style(TRANSPARENT)
        .axis_style(FAINT.stroke_width(FINE))
        .x_desc("step")
        .y_desc(label)
        .axis_desc_style((FONT, 26 * FINE).into_font().color(&INK))
        .label_style((FONT, 22 * FINE).into_font().color(&FAINT))
        .x_label_formatter(&|x| grouped(*x))
        .y_label_formatter(&|y| fixed(*y, step))
        .draw()?;

    let values: Vec<f64> = points.iter().map(|(_, y)| *y).collect();
    let mean: Vec<(f64, f64)> = points.iter().zip(smooth(&values)).map(|((x, _), y)| (*x, y)).collect();
    let light = BLUE.mix(0.35);
    let swatch =
        |(x, y): (i32, i32), style: ShapeStyle| PathElement::new([(x, y), (x + 34 * FINE as i32, y)], style);
    chart
        .draw_series(LineSeries::new(points.iter().copied(), light.stroke_width(2 * FINE)))?
        .label("original")
        .legend(move |at| swatch(at, light.stroke_width(3 * FINE)));
    chart
        .draw_series(LineSeries::new(mean.iter().copied(), BLUE.stroke_width(3 * FINE)))?
        .label("smoothed")
        .legend(move |at| swatch(at, BLUE.stroke_width(4 * FINE)));
    if points.len() == 1 {
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 5 * FINE, BLUE.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .margin(18 * FINE)
        .legend_area_size(48 * FINE)
        .label_font((FONT, 24 * FINE).into_font().color(&INK))
        .background_style(WHITE.mix(0.9))
        .border_style(GRID.stroke_width(FINE))
        .draw()?;
    drop(chart);
    drop(area);
    Ok(pixels)
}

/// From the least to the greatest value with some room; never empty.
fn span(values: impl Iterator<Item = f64>, room: f64) -> Range<f64> {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
    let width = high - low;
    if width > 0.0 && width.is_finite() {
        low - room * width..high + room * width
    } else {
        let half = 0.5f64.max(low.abs() * 0.05);
        low - half..low + half
    }
}

/// The distance between labels, roughly: it decides their decimals.
fn tick(range: &Range<f64>, labels: usize) -> f64 {
    (range.end - range.start) / labels as f64
}

fn fixed(y: f64, step: f64) -> String {
    let decimals = (-step.log10()).ceil().clamp(0.0, 9.0) as usize;
    format!("{y:.decimals$}")
}

fn grouped(x: f64) -> String {
    if x.fract() == 0.0 { format!("{x}") } else { String::new() }
}

/// The mean of every square of [`FINE`] x [`FINE`] pixels: the drawing crate has hard edges, this gives soft ones.
fn softened(fine: &[u8]) -> Vec<u8> {
    let (row, side) = ((SIZE.0 * FINE * 3) as usize, FINE as usize);
    let mut pixels = Vec::with_capacity((SIZE.0 * SIZE.1 * 3) as usize);
    for rows in fine.chunks_exact(row * side) {
        for x in (0..row).step_by(3 * side) {
            let mut sums = [0; 3];
            for corner in (x..row * side).step_by(row) {
                for pixel in rows[corner..corner + 3 * side].chunks_exact(3) {
                    sums = [0, 1, 2].map(|channel| sums[channel] + u32::from(pixel[channel]));
                }
            }
            pixels.extend(sums.map(|sum| (sum / (FINE * FINE)) as u8));
        }
    }
    pixels
}

fn encoded(pixels: &[u8]) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, SIZE.0, SIZE.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoothing_is_that_of_the_original() {
        // Weight of three values: 1.8 * (1 / (1 + exp(-0.15)) - 0.5) = 0.0673736...
        let weight = 1.8 * (1.0 / (1.0 + (-0.15f64).exp()) - 0.5);
        let second = 4.0 * weight + 2.0 * (1.0 - weight);
        assert_eq!(smooth(&[4.0, 2.0, 1.0]), [4.0, second, second * weight + (1.0 - weight)]);
        assert!((weight - 0.067_373_7).abs() < 1e-7);
        assert!(smooth(&[]).is_empty());
    }

    #[test]
    fn a_curve_becomes_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("training_loss.png");
        let noise = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / 16_777_216.0;
        let points: Vec<(u64, f64)> =
            (1..=300).map(|i| (i * 10, 2.1 + 6.5 * (-(i as f64) / 40.0).exp() + 0.5 * noise(i))).collect();
        assert!(draw(&path, "Training loss", "loss", &points).unwrap());
        if let Some(copy) = std::env::var_os("OARLOCK_SHOW_PLOT") {
            std::fs::copy(&path, copy).unwrap();
        }
        let mut reader = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&path).unwrap()))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!((info.width, info.height), SIZE);
        // The curve, its light copy and the text are there: blue, light blue and dark pixels.
        let count =
            |is: &dyn Fn(u8, u8, u8) -> bool| pixels.chunks_exact(3).filter(|p| is(p[0], p[1], p[2])).count();
        assert!(count(&|r, _, b| r < 0x30 && b > 0xa0) > 1000, "smoothed");
        assert!(count(&|r, _, b| (0x90..0xd0).contains(&r) && b > 0xd0) > 1000, "original");
        let top = &pixels[..(SIZE.0 * 80 * 3) as usize];
        assert!(top.chunks_exact(3).filter(|p| p.iter().all(|c| *c < 0x60)).count() > 200, "title");
    }

    #[test]
    fn odd_curves_are_drawn_or_declined() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.png");
        assert!(!draw(&path, "t", "loss", &[]).unwrap());
        assert!(!draw(&path, "t", "loss", &[(1, f64::NAN)]).unwrap());
        assert!(!path.exists());
        for points in [
            &[(1.0, 2.0)][..],
            &[(0.0, 0.0), (1.0, 0.0)],
            &[(1.0, 1e300), (2.0, -1e300)],
            &[(1.0, 1e-12), (1e19, 2e-12)],
        ] {
            assert!(drawn("t", "loss", points).is_ok(), "{points:?}");
        }
        let error = draw(&folder.path().join("no/plot.png"), "t", "loss", &[(1, 1.0)]).unwrap_err();
        assert!(error.to_string().starts_with("cannot write `"), "{error}");
    }
}
