//! The ops that are checked, their shapes, and their formulas in f64.

mod attention;
mod decoders;
mod elements;
mod exact;
mod fused;
mod losses;
mod moves;
mod pairs;
mod products;
mod quantized;
mod shapes;
mod sizes;

use oarlock_tensor::Result;

use super::case::Case;
use shapes::Sizes;

const FULL: Sizes = Sizes {
    b: 2,
    s: 512,
    tiles: 512,
    h: 8,
    g: 2,
    heads: [64, 128],
    i: 512,
    v: 4096,
    wide_rows: 300,
    other_heads: &[96, 192, 256],
    large: [151_936, 64, 32],
};
/// With the sizes of heads that the fake libraries of the tests have.
const QUICK: Sizes = Sizes {
    b: 2,
    s: 20,
    tiles: 72,
    h: 2,
    g: 1,
    heads: [64, 32],
    i: 40,
    v: 72,
    wide_rows: 3,
    other_heads: &[],
    large: [1500, 20, 8],
};

/// Those of attention.
pub(super) fn attention(quick: bool) -> Vec<Case> {
    attention::cases(if quick { &QUICK } else { &FULL })
}

/// All cases.
pub(super) fn all(quick: bool) -> Result<Vec<Case>> {
    let sizes = if quick { QUICK } else { FULL };
    let mut cases = attention::cases(&sizes);
    cases.extend(products::cases(&sizes));
    cases.extend(decoders::cases(&sizes)?);
    cases.extend(fused::cases(&sizes));
    cases.extend(losses::cases(&sizes));
    cases.extend(elements::cases(&sizes));
    cases.extend(moves::cases(&sizes));
    cases.extend(pairs::cases(&sizes));
    cases.extend(quantized::cases(&sizes)?);
    cases.extend(exact::cases(&sizes));
    cases.extend(sizes::cases(&sizes));
    Ok(cases)
}
