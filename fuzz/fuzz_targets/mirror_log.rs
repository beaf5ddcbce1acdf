//! libFuzzer's door to `blockwork_fuzz_entry::mirror_log`.

#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| blockwork_fuzz_entry::mirror_log(data));
