//! A Parquet file whose pages may be compressed with Zstandard. The crate `parquet` knows that only with the library in C, which
//! takes longer to build than all the rest of it, so pages leave it as they are stored and are decompressed here.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::bloom_filter::Sbbf;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;
use ruzstd::decoding::StreamingDecoder;

/// A file and what its end says of its columns.
pub(super) struct ParquetFile {
    file: Arc<File>,
    metadata: ParquetMetaData,
}

impl ParquetFile {
    pub(super) fn new(file: File) -> Result<ParquetFile> {
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file)?;
        Ok(ParquetFile { file: Arc::new(file), metadata })
    }
}

impl FileReader for ParquetFile {
    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }

    fn num_row_groups(&self) -> usize {
        self.metadata.num_row_groups()
    }

    fn get_row_group(&self, i: usize) -> Result<Box<dyn RowGroupReader + '_>> {
        Ok(Box::new(RowGroup { file: &self.file, metadata: self.metadata.row_group(i) }))
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_file(projection, self)
    }
}

struct RowGroup<'f> {
    file: &'f Arc<File>,
    metadata: &'f RowGroupMetaData,
}

impl RowGroupReader for RowGroup<'_> {
    fn metadata(&self) -> &RowGroupMetaData {
        self.metadata
    }

    fn num_columns(&self) -> usize {
        self.metadata.num_columns()
    }

    fn get_column_page_reader(&self, i: usize) -> Result<Box<dyn PageReader>> {
        let column = self.metadata.column(i);
        let n_rows = usize::try_from(self.metadata.num_rows())?;
        let file = Arc::clone(self.file);
        if !matches!(column.compression(), Compression::ZSTD(_)) {
            return Ok(Box::new(SerializedPageReader::new(file, column, n_rows, None)?));
        }
        let stored = column.clone().into_builder().set_compression(Compression::UNCOMPRESSED).build()?;
        let pages = SerializedPageReader::new(file, &stored, n_rows, None)?;
        Ok(Box::new(ZstdPages { pages, max_bytes: u64::try_from(column.uncompressed_size())? }))
    }

    fn get_column_bloom_filter(&self, _: usize) -> Option<&Sbbf> {
        None
    }

    fn get_row_iter(&self, projection: Option<Type>) -> Result<RowIter<'_>> {
        RowIter::from_row_group(projection, self)
    }
}

/// The pages of a column, decompressed.
struct ZstdPages {
    pages: SerializedPageReader<File>,
    /// What all pages of the column together have, so that damaged ones cannot fill the memory.
    max_bytes: u64,
}

impl PageReader for ZstdPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let Some(mut page) = self.pages.get_next_page()? else { return Ok(None) };
        match &mut page {
            Page::DataPage { buf, .. } | Page::DictionaryPage { buf, .. } => {
                *buf = decompress(buf, 0, self.max_bytes)?.into();
            }
            Page::DataPageV2 {
                buf, def_levels_byte_len, rep_levels_byte_len, is_compressed: true, ..
            } => {
                // In front of the values are the levels, which are never compressed.
                let n_levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                *buf = decompress(buf, n_levels, self.max_bytes)?.into();
            }
            Page::DataPageV2 { .. } => {}
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }
}

impl Iterator for ZstdPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

/// The first `n_plain` bytes as they are, and what the frames behind them hold: at most `max_bytes`.
fn decompress(stored: &[u8], n_plain: usize, max_bytes: u64) -> Result<Vec<u8>> {
    let wrong = |what: &str| ParquetError::General(format!("Zstandard: {what}"));
    let (plain, mut frames) = stored.split_at_checked(n_plain).ok_or_else(|| wrong("a page is too short"))?;
    let mut output = plain.to_vec();
    while !frames.is_empty() {
        let begin = output.len() as u64;
        let mut frame = StreamingDecoder::new(&mut frames).map_err(|error| wrong(&error.to_string()))?;
        frame.by_ref().take((max_bytes + 1).saturating_sub(begin)).read_to_end(&mut output)?;
        let n_bytes = output.len() as u64 - begin;
        if output.len() as u64 > max_bytes {
            return Err(wrong("a page has more bytes than its column"));
        }
        // A frame that does not say its size says 0.
        let expected = frame.decoder.content_size();
        if expected != 0 && expected != n_bytes {
            return Err(wrong(&format!("a frame has {n_bytes} bytes instead of {expected}")));
        }
        let checksum = frame.decoder.get_checksum_from_data();
        if checksum.is_some() && checksum != frame.decoder.get_calculated_checksum() {
            return Err(wrong("the checksum of a frame does not match"));
        }
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    #[test]
    fn frames_follow_what_is_plain() {
        let text = b"the heron waits by the lock; ".repeat(50);
        let frame = compress_to_vec(&text[..], CompressionLevel::Fastest);
        assert!(frame.len() < text.len() / 4);
        assert_eq!(decompress(&frame, 0, text.len() as u64).unwrap(), text);
        assert_eq!(decompress(b"plain", 5, 5).unwrap(), b"plain");
        let both = [b"plain", &frame[..], &frame[..]].concat();
        assert_eq!(decompress(&both, 5, 3000).unwrap(), [b"plain", &text[..], &text[..]].concat());
    }

    #[test]
    fn what_does_not_fit_is_an_error() {
        let text = b"the heron waits by the lock; ".repeat(50);
        let frame = compress_to_vec(&text[..], CompressionLevel::Fastest);
        let error = |stored: &[u8], n_plain, max_bytes| {
            decompress(stored, n_plain, max_bytes).unwrap_err().to_string()
        };
        assert!(error(&frame, 0, text.len() as u64 - 1).contains("more bytes than its column"));
        assert!(error(&frame, 0, 0).contains("more bytes than its column"));
        assert!(error(b"abc", 4, 100).contains("too short"));
        assert!(error(b"no frame at all", 0, 100).contains("Zstandard"));
        let mut other_sum = frame.clone();
        *other_sum.last_mut().unwrap() ^= 1;
        assert!(error(&other_sum, 0, 3000).contains("checksum"));
        for n_bytes in 1..frame.len() {
            assert!(decompress(&frame[..n_bytes], 0, 3000).is_err(), "{n_bytes} bytes of a frame");
        }
    }
}
