//! Numbers as Python writes them, for lines and files that programs in Python also write.

/// As `repr` does: the shortest digits that give the number back, with an exponent where it is far from one.
pub fn repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let (digits, exponent) = scientific(format!("{x:e}"));
    match exponent {
        -4..16 if x.fract() == 0.0 => format!("{x}.0"),
        -4..16 => x.to_string(),
        _ => with_exponent(&digits, exponent),
    }
}

/// As the format `g` does: six digits, without zeros at the end.
pub fn general(x: f64) -> String {
    if !x.is_finite() {
        return repr(x);
    }
    let without_zeros = |text: String| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    };
    let (digits, exponent) = scientific(format!("{x:.5e}"));
    match exponent {
        -4..6 => without_zeros(format!("{x:.*}", usize::try_from(5 - exponent).unwrap_or(0))),
        _ => with_exponent(&without_zeros(digits), exponent),
    }
}

/// The digits and the exponent of `d.ddde-x`, as Rust writes it.
fn scientific(text: String) -> (String, i32) {
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    (digits.to_owned(), exponent.parse().unwrap_or(0))
}

fn with_exponent(digits: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_python() {
        for (x, expected) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1 + 0.2, "0.30000000000000004"),
            (5e-5, "5e-05"),
            (1.25e-7, "1.25e-07"),
            (0.0001, "0.0001"),
            (123456789012345.0, "123456789012345.0"),
            (1e16, "1e+16"),
            (-2.5e-300, "-2.5e-300"),
            (f64::NAN, "nan"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(repr(x), expected);
        }
        for (x, expected) in [
            (0.0, "0"),
            (1.0, "1"),
            (100.0, "100"),
            (12.34, "12.34"),
            (0.05, "0.05"),
            (123456.0, "123456"),
            (1234567.0, "1.23457e+06"),
            (0.00001, "1e-05"),
            (999999.9, "1e+06"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(general(x), expected);
        }
    }
}
