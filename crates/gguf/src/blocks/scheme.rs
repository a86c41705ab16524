//! What a block type is: where its codes lie, what a code means, and how its scales are read and found.

use crate::blocks::planes::{Plane, pack, unpack};

/// The most elements of a block.
pub(crate) const MAX_BLOCK: usize = 256;

/// The most groups of a block, each with a scale of its own.
pub(crate) const MAX_GROUPS: usize = 16;

/// What stands for no offset: adding it changes no number, not even the sign of zero.
pub(crate) const NO_OFFSET: f32 = -0.0;

/// The scale and offset of a group: an element is its level times the scale, plus the offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub scale: f32,
    pub offset: f32,
}

/// What a code stands for before it is scaled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Levels {
    /// The code less a constant.
    Above(u8),
    /// The code as a signed byte.
    Signed,
    /// One of 16 steps.
    Steps(&'static [i8; 16]),
}

/// How much the columns of a row matter when its codes are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights<'a> {
    /// The importance of each element of the block.
    pub columns: &'a [f32],
    /// The mean of the squares of the row.
    pub mean_square: f32,
}

/// Finds the codes of a block, and writes its scales.
pub(crate) type Encode = fn(&[f32], Option<Weights<'_>>, &mut [u8], &mut [u8]);

/// A block type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scheme {
    /// The elements that share a scale.
    pub group: usize,
    /// The planes of a code, the lowest bits first.
    pub planes: &'static [Plane],
    /// What a code means.
    pub levels: Levels,
    /// Reads the scales of the groups.
    pub read: fn(&[u8], &mut [Group]),
    /// How blocks are made, where they are made here.
    pub encode: Option<Encode>,
}

impl Scheme {
    /// The scales of a block, of which the first are used.
    fn groups(&self, block: &[u8]) -> [Group; MAX_GROUPS] {
        let mut groups = [Group { scale: 0.0, offset: NO_OFFSET }; MAX_GROUPS];
        (self.read)(block, &mut groups);
        groups
    }

    /// Whether all scales of a block are numbers.
    pub fn is_finite(&self, block: &[u8]) -> bool {
        self.groups(block).iter().all(|group| group.scale.is_finite() && group.offset.is_finite())
    }

    /// Writes the elements of a block.
    pub fn decode(&self, block: &[u8], out: &mut [f32]) {
        let mut codes = [0; MAX_BLOCK];
        let codes = &mut codes[..out.len()];
        unpack(self.planes, block, codes);
        let groups = self.groups(block);
        match self.levels {
            Levels::Above(zero) => {
                scaled(codes, &groups, self.group, out, |code| f32::from(i16::from(code) - i16::from(zero)));
            }
            Levels::Signed => {
                scaled(codes, &groups, self.group, out, |code| f32::from(code.cast_signed()));
            }
            Levels::Steps(steps) => {
                scaled(codes, &groups, self.group, out, |code| f32::from(steps[usize::from(code & 15)]));
            }
        }
    }

    /// Makes a block by the function of its type.
    pub fn encode(
        encode: Encode,
        planes: &[Plane],
        values: &[f32],
        weights: Option<Weights<'_>>,
        block: &mut [u8],
    ) {
        let mut codes = [0; MAX_BLOCK];
        let codes = &mut codes[..values.len()];
        encode(values, weights, block, codes);
        pack(planes, codes, block);
    }
}

fn scaled(codes: &[u8], groups: &[Group], elems: usize, out: &mut [f32], level: impl Fn(u8) -> f32) {
    for ((codes, out), group) in codes.chunks(elems).zip(out.chunks_mut(elems)).zip(groups) {
        for (code, out) in codes.iter().zip(out) {
            *out = level(*code) * group.scale + group.offset;
        }
    }
}
