//! The curves of a run as pictures: every logged value light with a smoothed line over it, and what was measured exactly as
//! points.

mod smooth;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Once;

use oarlock_engine::report::state::TrainerState;
use oarlock_engine::report::terminal::eprint;

use crate::error::Result;
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
const ORANGE: RGBColor = RGBColor(0xd9, 0x5f, 0x02);
const INK: RGBColor = RGBColor(0x33, 0x3b, 0x46);
const FAINT: RGBColor = RGBColor(0x6b, 0x75, 0x82);
const GRID: RGBColor = RGBColor(0xe6, 0xea, 0xef);

/// Values over steps.
struct Curve<'a> {
    label: &'a str,
    color: RGBColor,
    points: Vec<(f64, f64)>,
    /// Each is a mean over a whole data set, not over the rows of some steps.
    is_exact: bool,
}

impl<'a> Curve<'a> {
    /// Values that are not numbers are left out.
    fn new(label: &'a str, color: RGBColor, points: &[(u64, f64)]) -> Curve<'a> {
        let points = points.iter().filter(|(_, y)| y.is_finite()).map(|(x, y)| (*x as f64, *y)).collect();
        Curve { label, color, points, is_exact: false }
    }

    fn exact(label: &'a str, color: RGBColor, points: &[(u64, f64)]) -> Curve<'a> {
        Curve { is_exact: true, ..Curve::new(label, color, points) }
    }
}

/// Draws the curves of a run into its folder.
pub fn of_run(dir: &Path, state: &TrainerState) -> Result<()> {
    let evals = state.series("eval_loss");
    let of = run_name(dir).map_or(String::new(), |name| format!(" of {name}"));
    let pictured = |name: &str, title: &str, axis: &str, curves: &[Curve<'_>]| {
        draw(&dir.join(name), &format!("{title}{of}"), axis, curves)
    };
    let losses = state.series("loss");
    if losses.is_empty() && state.global_step > 0 {
        eprint(&format!(
            "note: no loss was logged, so there is no training_loss.png: a line comes every logging_steps={} steps, and the \
             run had {}\n",
            state.logging_steps, state.global_step
        ));
    }
    if !losses.is_empty() {
        let curves = [Curve::new("training", BLUE, &losses), Curve::exact("evaluation", ORANGE, &evals)];
        pictured("training_loss.png", "Training loss", "loss", &curves)?;
    }
    let eval = [Curve::exact("evaluation", ORANGE, &evals)];
    pictured("training_eval_loss.png", "Evaluation loss", "eval_loss", &eval)?;
    // Of preferences, paired and unpaired, and rewards.
    let chosen = ["rewards/accuracies", "rewards/chosen"].map(|key| (key, state.series(key)));
    if let Some((key, points)) = chosen.iter().find(|(_, points)| !points.is_empty()) {
        let name = format!("training_{}.png", key.replace('/', "_"));
        let title =
            if *key == "rewards/chosen" { "Rewards of wanted answers" } else { "Pairs with the right order" };
        pictured(&name, title, key, &[Curve::new("training", BLUE, points)])?;
    }
    let accuracies = [Curve::exact("evaluation", ORANGE, &state.series("eval_accuracy"))];
    pictured("training_eval_accuracy.png", "Evaluation accuracy", "eval_accuracy", &accuracies)?;
    Ok(())
}

/// The name of the output folder as a title can show it: the font has no letters of other scripts.
fn run_name(dir: &Path) -> Option<String> {
    const MAX_CHARS: usize = 50;
    let dir = dir.canonicalize().ok()?;
    let name = dir.file_name()?.to_str()?;
    let can_be_shown = name.len() <= MAX_CHARS && name.chars().all(|c| c.is_ascii_graphic() || c == ' ');
    can_be_shown.then(|| name.to_owned())
}

/// Draws curves over steps into a PNG file. `false` if there is nothing to draw.
fn draw(path: &Path, title: &str, axis: &str, curves: &[Curve<'_>]) -> Result<bool> {
    if curves.iter().all(|curve| curve.points.is_empty()) {
        return Ok(false);
    }
    register_fonts();
    let failed = |cause: String| PlotError { path: path.to_owned(), cause };
    let fine = drawn(title, axis, curves).map_err(|error| failed(error.to_string()))?;
    let file = encoded(&softened(&fine)).map_err(|error| failed(error.to_string()))?;
    oarlock_engine::report::replace(path, &file)?;
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
    axis: &str,
    curves: &[Curve<'_>],
) -> std::result::Result<Vec<u8>, Box<dyn std::error::Error>> {
    let size = (SIZE.0 * FINE, SIZE.1 * FINE);
    let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
    let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
    area.fill(&WHITE)?;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let mut xs = span(points().map(|(x, _)| *x), 0.0);
    // A run that begins near 0 shows its beginning.
    if xs.start < 0.2 * xs.end {
        xs.start = 0.0;
    }
    let mut ys = span(points().map(|(_, y)| *y), 0.06);
    // What is never negative has no axis below 0.
    if points().all(|(_, y)| *y >= 0.0) {
        ys.start = ys.start.max(0.0);
    }
    let mut chart = ChartBuilder::on(&area)
        .margin_top(26 * FINE)
        .margin_right(44 * FINE)
        .margin_left(22 * FINE)
        .margin_bottom(18 * FINE)
        .caption(title, (FONT, 34 * FINE).into_font().color(&INK))
        .x_label_area_size(72 * FINE)
        .y_label_area_size(92 * FINE)
        .build_cartesian_2d(xs.clone(), ys.clone())?;
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
        .y_desc(axis)
        .axis_desc_style((FONT, 26 * FINE).into_font().color(&INK))
        .label_style((FONT, 22 * FINE).into_font().color(&FAINT))
        .x_label_formatter(&|x| grouped(*x))
        .y_label_formatter(&|y| fixed(*y, step))
        .draw()?;

    let swatch =
        |(x, y): (i32, i32), style: ShapeStyle| PathElement::new([(x, y), (x + 34 * FINE as i32, y)], style);
    for Curve { label, color, points, is_exact } in curves.iter().filter(|curve| !curve.points.is_empty()) {
        let (color, light) = (*color, color.mix(0.35));
        let bold = color.stroke_width(3 * FINE);
        let legend = move |at| swatch(at, color.stroke_width(4 * FINE));
        if *is_exact || points.len() < smooth::LEAST {
            chart.draw_series(LineSeries::new(points.iter().copied(), bold))?.label(*label).legend(legend);
            chart.draw_series(points.iter().map(|point| Circle::new(*point, 5 * FINE, color.filled())))?;
            continue;
        }
        chart
            .draw_series(LineSeries::new(points.iter().copied(), light.stroke_width(2 * FINE)))?
            .label(format!("{label}, as logged"))
            .legend(move |at| swatch(at, light.stroke_width(3 * FINE)));
        let values: Vec<f64> = points.iter().map(|(_, y)| *y).collect();
        let smoothed = points.iter().zip(smooth::smooth(&values)).map(|((x, _), y)| (*x, y));
        chart
            .draw_series(LineSeries::new(smoothed, bold))?
            .label(format!("{label}, smoothed"))
            .legend(legend);
    }
    chart
        .configure_series_labels()
        .position(emptiest_corner(points(), &xs, &ys))
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

/// The corner in which the legend hides the fewest points.
fn emptiest_corner<'p>(
    points: impl Iterator<Item = &'p (f64, f64)>,
    xs: &Range<f64>,
    ys: &Range<f64>,
) -> SeriesLabelPosition {
    // What a legend takes of the picture.
    const SHARE: (f64, f64) = (0.32, 0.25);
    let mut counts = [0u32; 4];
    for (x, y) in points {
        let (x, y) = ((x - xs.start) / (xs.end - xs.start), (y - ys.start) / (ys.end - ys.start));
        let (left, right) = (x < SHARE.0, x > 1.0 - SHARE.0);
        let (low, high) = (y < SHARE.1, y > 1.0 - SHARE.1);
        let is_in = [right && high, left && high, right && low, left && low];
        counts.iter_mut().zip(is_in).for_each(|(count, is_in)| *count += u32::from(is_in));
    }
    let corners = [
        SeriesLabelPosition::UpperRight,
        SeriesLabelPosition::UpperLeft,
        SeriesLabelPosition::LowerRight,
        SeriesLabelPosition::LowerLeft,
    ];
    let least = counts.into_iter().zip(corners).min_by_key(|(count, _)| *count);
    least.map_or(SeriesLabelPosition::UpperRight, |(_, corner)| corner)
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
    let decimals = (-libm::log10(step)).ceil().clamp(0.0, 9.0) as usize;
    format!("{y:.decimals$}")
}

fn grouped(x: f64) -> String {
    if x.fract() == 0.0 { format!("{x}") } else { String::new() }
}

/// The mean of every square of [`FINE`] x [`FINE`] pixels: the drawing crate has hard edges, this gives soft ones.
fn softened(fine: &[u8]) -> Vec<u8> {
    const { assert!(FINE == 2) };
    let row = (SIZE.0 * FINE * 3) as usize;
    let mut pixels = vec![0; (SIZE.0 * SIZE.1 * 3) as usize];
    let mut to = 0;
    for rows in fine.chunks_exact(2 * row) {
        // Millions of bytes without a call for each: in a debug build iterators take ten times as long.
        let (mut at, mut channel) = (0, 0);
        while at < row {
            let sum =
                rows[at] as u32 + rows[at + 3] as u32 + rows[at + row] as u32 + rows[at + row + 3] as u32;
            pixels[to] = (sum / 4) as u8;
            to += 1;
            channel += 1;
            at += 1;
            if channel == 3 {
                channel = 0;
                at += 3;
            }
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
    fn a_curve_becomes_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("training_loss.png");
        let noise = |i: u64| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / 16_777_216.0;
        let points: Vec<(u64, f64)> =
            (1..=300).map(|i| (i * 10, 2.1 + 6.5 * (-(i as f64) / 40.0).exp() + 0.5 * noise(i))).collect();
        let evals: Vec<(u64, f64)> = (1..=6).map(|i| (i * 500, 2.4 + 5.0 * (-(i as f64)).exp())).collect();
        let curves = [Curve::new("training", BLUE, &points), Curve::exact("evaluation", ORANGE, &evals)];
        assert!(draw(&path, "Training loss of a-run", "loss", &curves).unwrap());
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
        assert!(count(&|r, _, b| (0x90..0xd0).contains(&r) && b > 0xd0) > 1000, "as logged");
        assert!(count(&|r, _, b| r > 0xc0 && b < 0x20) > 1000, "evaluation");
        let top = &pixels[..(SIZE.0 * 80 * 3) as usize];
        assert!(top.chunks_exact(3).filter(|p| p.iter().all(|c| *c < 0x60)).count() > 200, "title");
    }

    /// `bench/pictures` makes the picture of the README and the log beside it.
    #[test]
    fn the_picture_of_the_readme_is_drawn_from_its_log_and_agrees_with_its_text() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let images = root.join("docs/images");
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("pretrain");
        std::fs::create_dir(&run).unwrap();
        std::fs::copy(images.join("training_loss.json"), run.join("trainer_state.json")).unwrap();
        let state = TrainerState::load(&run).unwrap();
        of_run(&run, &state).unwrap();
        let [drawn, shown] = [&run, &images].map(|folder| folder.join("training_loss.png"));
        if std::env::var_os("OARLOCK_BLESS").is_some() {
            std::fs::copy(&drawn, &shown).unwrap();
        }
        let [drawn, shown] = [drawn, shown].map(|path| std::fs::read(path).unwrap());
        assert!(
            drawn == shown,
            "docs/images/training_loss.png is not what the program draws; use OARLOCK_BLESS=1"
        );

        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        let at = |key: &str, step: u64| {
            state.series(key).iter().find(|(at, _)| *at == step).map(|(_, value)| *value).unwrap()
        };
        let mut n_lines = [0; 2];
        for line in readme.lines() {
            if let Some((step, rest)) =
                line.strip_prefix("evaluation at step ").and_then(|line| line.split_once(": "))
            {
                let loss = at("eval_loss", step.parse().unwrap());
                assert_eq!(rest, format!("loss {loss:.4}, perplexity {:.3}", loss.exp()), "step {step}");
                n_lines[0] += 1;
            } else if let Some((step, rest)) =
                line.strip_prefix("step ").and_then(|line| line.split_once("/672 "))
            {
                let step = step.parse().unwrap();
                let [lr, norm] = ["learning_rate", "grad_norm"].map(|key| at(key, step));
                let both = format!("  lr {lr:.2e}  norm {norm:.3}  ");
                assert!(rest.contains(&both), "step {step}: {both:?} is not in {rest:?}");
                n_lines[1] += 1;
            }
        }
        assert!(n_lines[0] >= 4 && n_lines[1] >= 5, "{n_lines:?}");
    }

    #[test]
    fn odd_curves_are_drawn_or_declined() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plot.png");
        let curve = |points: &[(u64, f64)]| [Curve::new("training", BLUE, points)];
        assert!(!draw(&path, "t", "loss", &curve(&[])).unwrap());
        assert!(!draw(&path, "t", "loss", &curve(&[(1, f64::NAN)])).unwrap());
        assert!(!path.exists());
        for points in [
            &[(1.0, 2.0)][..],
            &[(0.0, 0.0), (1.0, 0.0)],
            &[(1.0, 1e300), (2.0, -1e300)],
            &[(1.0, 1e-12), (1e19, 2e-12)],
        ] {
            let curve = Curve { points: points.to_vec(), ..Curve::new("training", BLUE, &[]) };
            assert!(drawn("t", "loss", &[curve]).is_ok(), "{points:?}");
        }
        let error = draw(&folder.path().join("no/plot.png"), "t", "loss", &curve(&[(1, 1.0)])).unwrap_err();
        assert!(error.to_string().starts_with("cannot write `"), "{error}");
    }

    #[test]
    fn a_legend_stands_where_it_hides_the_fewest_points() {
        let corner = |points: &[(f64, f64)]| match emptiest_corner(points.iter(), &(0.0..1.0), &(0.0..1.0)) {
            SeriesLabelPosition::UpperRight => "upper right",
            SeriesLabelPosition::LowerRight => "lower right",
            SeriesLabelPosition::UpperLeft => "upper left",
            _ => "lower left",
        };
        assert_eq!(corner(&[(0.1, 0.9), (0.9, 0.1)]), "upper right");
        // Accuracies that reach 1 early.
        assert_eq!(corner(&[(0.1, 0.95), (0.5, 0.99), (0.9, 0.99)]), "lower right");
    }

    #[test]
    fn a_title_shows_the_name_of_the_folder_where_the_font_has_its_letters() {
        let folder = tempfile::tempdir().unwrap();
        for (name, shown) in [("qwen3_lora", true), ("模型", false), (&"x".repeat(80), false)] {
            let dir = folder.path().join(name);
            std::fs::create_dir(&dir).unwrap();
            assert_eq!(run_name(&dir), shown.then(|| name.to_owned()));
        }
    }
}
