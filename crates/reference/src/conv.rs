//! Convolutions and transposed ones of images.

use crate::formula::Array;

/// Which elements of an image a kernel meets; in one dim the height is 1.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Conv {
    pub input: [usize; 2],
    pub output: [usize; 2],
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

impl Conv {
    /// The element of the kernel, the place in the output and that in the input of all that meet.
    pub fn taps(&self) -> Vec<[usize; 3]> {
        let [[height, width], [out_height, out_width], [kh, kw]] = [self.input, self.output, self.kernel];
        let mut taps = vec![];
        for (tap, out) in (0..kh * kw).flat_map(|k| (0..out_height * out_width).map(move |out| (k, out))) {
            let at = |d: usize, out: usize, k: usize| {
                (out * self.stride[d] + k * self.dilation[d]).checked_sub(self.padding[d])
            };
            let (h, w) = (at(0, out / out_width, tap / kw), at(1, out % out_width, tap % kw));
            if let (Some(h), Some(w)) = (h, w)
                && h < height
                && w < width
            {
                taps.push([tap, out, h * width + w]);
            }
        }
        taps
    }

    /// The places in images of the input, images of the output and weights `[O, C / groups, ..]` of all products.
    fn terms(&self, n: usize, c: usize, o: usize) -> [Vec<usize>; 3] {
        let [n_in, n_out, n_taps] = [self.input, self.output, self.kernel].map(|[h, w]| h * w);
        let (c_of, o_of, taps) = (c / self.groups, o / self.groups, self.taps());
        let mut terms = [vec![], vec![], vec![]];
        for (image, out) in (0..n).flat_map(|image| (0..o).map(move |out| (image, out))) {
            for (channel, [tap, to, from]) in (0..c_of).flat_map(|c| taps.iter().map(move |tap| (c, *tap))) {
                let of = out / o_of * c_of + channel;
                terms[0].push((image * c + of) * n_in + from);
                terms[1].push((image * o + out) * n_out + to);
                terms[2].push((out * c_of + channel) * n_taps + tap);
            }
        }
        terms
    }

    /// Images `[N, C, ..]` with weights `[O, C / groups, ..]`: `[N, O, ..]`.
    pub fn conv(&self, x: &Array, weight: &Array, bias: Option<&Array>) -> Array {
        let (n, o) = (x.sizes[0], weight.sizes[0]);
        let [from, to, of] = self.terms(n, x.sizes[1], o);
        sums(x, weight, bias, [from, of, to], &[n, o, self.output[0] * self.output[1]])
    }

    /// The transpose of the same map: images `[N, O, ..]` of the output with weights `[O, C / groups, ..]` to `[N, C, ..]`.
    pub fn transposed(&self, x: &Array, weight: &Array, bias: Option<&Array>) -> Array {
        let (n, o, c) = (x.sizes[0], x.sizes[1], weight.sizes[1] * self.groups);
        let [to, from, of] = self.terms(n, c, o);
        sums(x, weight, bias, [from, of, to], &[n, c, self.input[0] * self.input[1]])
    }
}

/// Sums of products of an element and a weight, and the bias of the channel.
fn sums(
    x: &Array,
    weight: &Array,
    bias: Option<&Array>,
    [from, of, to]: [Vec<usize>; 3],
    sizes: &[usize],
) -> Array {
    let n = [from.len()];
    let y = x.pick(&n, from).mul(&weight.pick(&n, of)).sum_by(sizes, to);
    bias.map_or(y.clone(), |bias| y.plus(&bias.reshape(&[sizes[1], 1])))
}
