//! libFuzzer's door to `blockwork_fuzz_entry::cache_metadata`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| blockwork_fuzz_entry::cache_metadata(data));
