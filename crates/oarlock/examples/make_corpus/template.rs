//! The plots: a parser for the template files and the telling of one story from a plot.
//!
//! A template file holds word lists and plots:
//!
//! ```text
//! list crew: name; he; trait        the fields; the lines that follow are the rows
//! Mara; she; patient
//!
//! plot the lost oar
//! a, b = crew; boat = boat          variables, two of one list never share a row
//!
//! - $a rowed. $a.he was $a.trait.   a paragraph of dashes is a scene, each dash one wording of it
//! - {Today|Once} $a met $b.         {…|…} chooses inside a wording and may be nested
//! ```
//!
//! `$a` is the first field of the row that the story drew for `a`, `$a.trait` the field of that name.

use super::rng::Rng;
use std::collections::BTreeMap;
use std::fmt;

/// What is wrong with a template file, and where.
#[derive(Debug)]
pub struct Error {
    place: String,
    problem: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

fn error<T>(place: impl Into<String>, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error { place: place.into(), problem: problem.into() })
}

#[derive(Default)]
struct List {
    fields: Vec<String>,
    rows: Vec<Vec<String>>,
}

struct Plot {
    name: String,
    variables: Vec<(String, String)>,
    scenes: Vec<Vec<String>>,
}

/// How the scenes of a language become one text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Language {
    English,
    Chinese,
}

/// One language: its word lists and plots.
pub struct Book {
    language: Language,
    lists: BTreeMap<String, List>,
    plots: Vec<Plot>,
}

/// A told plot. `cast` names the plot and all that was drawn for its variables.
pub struct Story {
    pub cast: String,
    pub text: String,
}

impl Book {
    /// Reads a template file.
    pub fn parse(language: Language, source: &str) -> Result<Self, Error> {
        enum Section {
            None,
            List(String),
            Plot(Plot),
        }
        let mut book = Self { language, lists: BTreeMap::new(), plots: Vec::new() };
        let mut section = Section::None;
        let mut new_scene = true;
        for (index, line) in source.lines().enumerate() {
            let place = format!("line {}", index + 1);
            let line = line.trim_end();
            let header = line.strip_prefix("list ").is_some() || line.strip_prefix("plot ").is_some();
            if header && let Section::Plot(plot) = std::mem::replace(&mut section, Section::None) {
                book.plots.push(plot);
            }
            if let Some(rest) = line.strip_prefix("list ") {
                let Some((name, fields)) = rest.split_once(':') else {
                    return error(place, "expected `list NAME: FIELD; FIELD`");
                };
                book.lists.insert(name.into(), List { fields: split(fields, ';'), rows: Vec::new() });
                section = Section::List(name.into());
            } else if let Some(name) = line.strip_prefix("plot ") {
                let plot = Plot { name: name.into(), variables: Vec::new(), scenes: Vec::new() };
                section = Section::Plot(plot);
                new_scene = true;
            } else if line.is_empty() {
                new_scene = true;
            } else if !line.starts_with('#') {
                match &mut section {
                    Section::None => return error(place, "text before the first `list` or `plot`"),
                    Section::List(name) => {
                        let list = book.lists.entry(name.clone()).or_default();
                        let row = split(line, ';');
                        if row.len() != list.fields.len() {
                            let (want, got) = (list.fields.len(), row.len());
                            return error(place, format!("list {name} has {want} fields, the row {got}"));
                        }
                        list.rows.push(row);
                    }
                    Section::Plot(plot) => match line.strip_prefix("- ") {
                        Some(wording) => {
                            match plot.scenes.last_mut() {
                                Some(scene) if !new_scene => scene.push(wording.trim().into()),
                                _ => plot.scenes.push(vec![wording.trim().into()]),
                            }
                            new_scene = false;
                        }
                        None => plot.variables.extend(declarations(line, &place)?),
                    },
                }
            }
        }
        if let Section::Plot(plot) = section {
            book.plots.push(plot);
        }
        Ok(book)
    }

    /// The number of plots.
    pub fn plots(&self) -> usize {
        self.plots.len()
    }

    /// The language of every plot.
    pub fn language(&self) -> Language {
        self.language
    }

    /// Tells plot number `index`: draws its variables, then one wording of each scene.
    pub fn tell(&self, index: usize, rng: &mut Rng) -> Result<Story, Error> {
        let plot = &self.plots[index];
        let mut drawn = BTreeMap::new();
        let mut cast = plot.name.clone();
        let mut taken: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (variable, list_name) in &plot.variables {
            let Some(list) = self.lists.get(list_name) else {
                return error(&plot.name, format!("no list is called {list_name}"));
            };
            let used = taken.entry(list_name).or_default();
            let free: Vec<usize> = (0..list.rows.len()).filter(|row| !used.contains(row)).collect();
            if free.is_empty() {
                return error(&plot.name, format!("list {list_name} has too few rows"));
            }
            let row = free[rng.below(free.len())];
            used.push(row);
            cast = format!("{cast}; {variable} = {}", list.rows[row][0]);
            drawn.insert(variable.as_str(), (list, row));
        }
        let mut scenes = Vec::new();
        for wordings in &plot.scenes {
            let mut text = String::new();
            let rest = expand(&wordings[rng.below(wordings.len())], &plot.name, &drawn, rng, &mut text)?;
            if !rest.is_empty() {
                return error(&plot.name, format!("unmatched brace before `{rest}`"));
            }
            scenes.push(text);
        }
        let text = match self.language {
            Language::English => capitals(&articles(&scenes.join(" "))),
            Language::Chinese => scenes.concat(),
        };
        Ok(Story { cast, text })
    }
}

fn split(text: &str, separator: char) -> Vec<String> {
    text.split(separator).map(|part| part.trim().into()).collect()
}

/// `a, b = crew; boat = boat` as pairs of variable and list.
fn declarations(line: &str, place: &str) -> Result<Vec<(String, String)>, Error> {
    let mut pairs = Vec::new();
    for part in line.split(';') {
        let Some((variables, list)) = part.split_once('=') else {
            return error(place, format!("expected `VARIABLE = LIST` or `- WORDING`, got `{line}`"));
        };
        pairs.extend(split(variables, ',').into_iter().map(|v| (v, list.trim().into())));
    }
    Ok(pairs)
}

type Drawn<'a> = BTreeMap<&'a str, (&'a List, usize)>;

/// Writes `template` with choices and variables resolved, up to the `|` or `}` that ends the surrounding
/// choice, and returns what follows.
fn expand<'t>(
    mut template: &'t str,
    plot: &str,
    drawn: &Drawn,
    rng: &mut Rng,
    out: &mut String,
) -> Result<&'t str, Error> {
    while let Some(at) = template.find(['{', '|', '}', '$']) {
        out.push_str(&template[..at]);
        let (mark, rest) = template[at..].split_at(1);
        match mark {
            "{" => {
                let mut choices = Vec::new();
                let mut tail = rest;
                loop {
                    let mut choice = String::new();
                    tail = expand(tail, plot, drawn, rng, &mut choice)?;
                    choices.push(choice);
                    match tail.split_at_checked(1) {
                        Some(("|", after)) => tail = after,
                        Some(("}", after)) => {
                            template = after;
                            break;
                        }
                        _ => return error(plot, "a `{` is never closed"),
                    }
                }
                out.push_str(&choices[rng.below(choices.len())]);
            }
            "$" => {
                let (name, mut after) = word(rest);
                let Some((list, row)) = drawn.get(name) else {
                    return error(plot, format!("no variable is called ${name}"));
                };
                let mut field = 0;
                // A full stop after a variable is a field only where a letter follows.
                if let Some((wanted, tail)) = after.strip_prefix('.').map(word)
                    && !wanted.is_empty()
                {
                    let Some(found) = list.fields.iter().position(|f| f == wanted) else {
                        return error(plot, format!("${name} has no field {wanted}"));
                    };
                    (field, after) = (found, tail);
                }
                out.push_str(&list.rows[*row][field]);
                template = after;
            }
            _ => return Ok(&template[at..]),
        }
    }
    out.push_str(template);
    Ok("")
}

/// Splits off the ASCII letters at the start.
fn word(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    text.split_at(end)
}

/// Turns `a` into `an` before a vowel.
fn articles(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let mut out = Vec::with_capacity(words.len());
    for (at, word) in words.iter().enumerate() {
        let vowel = words.get(at + 1).is_some_and(|next| next.starts_with(['a', 'e', 'i', 'o', 'u']));
        out.push(match *word {
            "a" if vowel => "an",
            "A" if vowel => "An",
            "\"A" if vowel => "\"An",
            other => other,
        });
    }
    out.join(" ")
}

/// Starts every sentence, also a quoted one, with a capital: a variable may stand there.
fn capitals(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let before = |at: usize, back: usize| at.checked_sub(back).map(|i| chars[i]);
    let starts = |at: usize| match (before(at, 1), before(at, 2), before(at, 3)) {
        (None, ..) => true,
        // An opening quote starts a sentence unless it goes on after `, said Mara,`.
        (Some('"'), previous, earlier) => match previous {
            None => true,
            Some(' ') => earlier != Some(','),
            _ => false,
        },
        (Some(' '), Some('.'), earlier) => earlier != Some('.'),
        (Some(' '), Some('!' | '?'), _) => true,
        (Some(' '), Some('"'), earlier) => earlier == Some('.'),
        _ => false,
    };
    chars.iter().enumerate().map(|(at, c)| if starts(at) { c.to_ascii_uppercase() } else { *c }).collect()
}
