use proptest::prelude::*;

use super::*;

fn any_hold() -> impl Strategy<Value = Hold> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
    (
        (any::<i64>(), any::<i64>(), "[a-z]{0,20}", any::<i32>(), "[0-9.:]{0,21}"),
        (bytes(40), bytes(40), bytes(40), bytes(300), bytes(3000)),
    )
        .prop_map(|((due_ms, accepted_ms, broker, queue, client), rest)| {
            let (topic, unique_key, keys, header, body) = rest;
            let lane = LaneKey { broker, topic, queue };
            Hold { due_ms, accepted_ms, lane, unique_key, keys, client, header, body }
        })
}

proptest! {
    #[test]
    fn a_hold_reads_back_as_written(hold in any_hold(), lsn in any::<u64>(), lead in 0usize..5) {
        let codec = Codec::new(7);
        let mut out = vec![0xEE; lead * ALIGN];
        codec.hold(&hold, Lsn(lsn), &mut out);
        prop_assert_eq!(hold_len(&hold).unwrap() as usize, out.len() - lead * ALIGN);
        let within = Bytes::from(out);
        let record = codec.check(&within[lead * ALIGN..], Lsn(lsn)).unwrap();
        prop_assert_eq!(record.kind, Kind::Hold);
        let held = record.held(&within).unwrap();
        prop_assert_eq!(held.id, TimerId(lsn));
        prop_assert_eq!(held.hold, hold);
    }

    #[test]
    fn any_changed_bit_is_seen(hold in any_hold(), bit in any::<prop::sample::Index>()) {
        let codec = Codec::new(7);
        let mut out = Vec::new();
        codec.hold(&hold, Lsn(64), &mut out);
        let bit = bit.index(out.len() * 8);
        out[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(codec.check(&out, Lsn(64)).is_err());
    }

    #[test]
    fn random_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Codec::new(7).check(&bytes, Lsn(64)).is_err());
    }
}

#[test]
fn bytes_of_a_hold_stay_as_documented() {
    let hold = Hold {
        due_ms: 0x0102_0304_0506_0708,
        accepted_ms: 9,
        lane: LaneKey { broker: "b".into(), topic: Bytes::from_static(b"to"), queue: -1 },
        unique_key: Bytes::from_static(b"uni"),
        keys: Bytes::from_static(b"keys"),
        client: "peer5".into(),
        header: Bytes::from_static(b"header"),
        body: Bytes::from_static(b"body..7"),
    };
    let mut out = Vec::new();
    Codec::new(0x1122).hold(&hold, Lsn(0x40), &mut out);
    let mut want = Vec::new();
    want.extend(104u32.to_le_bytes());
    want.extend(out[4..8].to_vec());
    want.extend(0x40u64.to_le_bytes());
    want.extend([1, 2, 0, 0, 0, 0, 0, 0]);
    want.extend(0x40u64.to_le_bytes());
    want.extend([8, 7, 6, 5, 4, 3, 2, 1]);
    want.extend(9u64.to_le_bytes());
    want.extend((-1i32).to_le_bytes());
    want.extend([1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 0, 0]);
    want.extend([6, 0, 0, 0, 7, 0, 0, 0]);
    want.extend(b"btounikeyspeer5headerbody..7");
    want.resize(104, 0);
    assert_eq!(out, want);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&0x1122u64.to_le_bytes());
    crc.update(&out[8..]);
    assert_eq!(out[4..8], crc.finalize().to_le_bytes());
}

#[test]
fn another_place_or_store_never_passes() {
    let codec = Codec::new(7);
    let mut out = Vec::new();
    codec.complete(&[(Lsn(64), 5), (Lsn(128), -6)], Lsn(256), &mut out);
    assert_eq!(out.len(), complete_len(2));
    assert_eq!(codec.check(&out, Lsn(264)), Err(Invalid::Misplaced));
    assert_eq!(Codec::new(8).check(&out, Lsn(256)), Err(Invalid::Checksum));
    let record = codec.check(&out, Lsn(256)).unwrap();
    assert_eq!(record.ended().unwrap(), [(Lsn(64), 5), (Lsn(128), -6)]);
}

#[test]
fn a_batch_names_what_was_synced_before_it() {
    let codec = Codec::new(7);
    let mut out = Vec::new();
    codec.begin_batch(&mut out);
    codec.complete(&[(Lsn(64), 5)], Lsn(104), &mut out);
    codec.finish_batch(&mut out, Lsn(64), Lsn(50), 1);
    let record = codec.check(&out, Lsn(64)).unwrap();
    assert_eq!((record.kind, record.len()), (Kind::Batch, BATCH_LEN));
    assert_eq!(record.synced_end().unwrap(), Lsn(50));
    assert_eq!(out[32..40], [48, 0, 0, 0, 1, 0, 0, 0]);
}

#[test]
fn a_section_too_long_for_the_layout_is_no_record() {
    let mut hold = Hold {
        due_ms: 1,
        accepted_ms: 1,
        lane: LaneKey { broker: String::new(), topic: Bytes::new(), queue: 0 },
        unique_key: Bytes::from(vec![b'u'; 65_535]),
        keys: Bytes::new(),
        client: String::new(),
        header: Bytes::new(),
        body: Bytes::new(),
    };
    assert_eq!(hold_len(&hold), Ok(65_608));
    hold.unique_key = Bytes::from(vec![b'u'; 65_536]);
    let too_long = HoldError::TooLong { part: "unique key", len: 65_536, limit: 65_535 };
    assert_eq!(hold_len(&hold), Err(too_long));
}
