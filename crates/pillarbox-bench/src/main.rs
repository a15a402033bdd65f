use pillarbox_core::*;
use std::time::*;
fn main() {
    let rt = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    rt.block_on(async {
        for backlog in [0usize, std::env::var("B").map_or(1_000_000, |n| n.parse().unwrap())] {
            for batch in [1usize, 10] {
                let b = Mailboxes::new(MemoryBackend::new());
                let q = b.queue("q", QueueOptions::new()).unwrap();
                let stat = std::env::var_os("STATIC").is_some();
                let body = vec![7u8; 256];
                for _ in 0..backlog / 1000 {
                    q.send(
                        (0..1000)
                            .map(|_| {
                                Outgoing::new(if stat {
                                    bytes::Bytes::from_static(b"xxx")
                                } else {
                                    body.clone().into()
                                })
                            })
                            .collect(),
                    )
                    .await
                    .unwrap();
                }
                for _ in 0..3 {
                    let n = std::env::var("N").map_or(2_000_000, |n| n.parse().unwrap()) / batch;
                    let t = Instant::now();
                    for _ in 0..n {
                        q.send(
                            (0..batch)
                                .map(|_| {
                                    Outgoing::new(if stat {
                                        bytes::Bytes::from_static(b"xxx")
                                    } else {
                                        body.clone().into()
                                    })
                                })
                                .collect(),
                        )
                        .await
                        .unwrap();
                        let d = q.receive(Receive::up_to(batch)).await.unwrap();
                        q.settle(d.into_iter().map(|d| Settle::acknowledge(d.receipt)).collect())
                            .await
                            .unwrap();
                    }
                    println!(
                        "backlog {backlog} batch {batch}: {:.0} ns/cycle",
                        t.elapsed().as_nanos() as f64 / (n * batch) as f64
                    );
                }
            }
        }
        let t = Instant::now();
        for _ in 0..1000000 {
            std::hint::black_box(MessageId::new());
        }
        println!("id {} ns", t.elapsed().as_nanos() / 1000000);
        let t = Instant::now();
        for _ in 0..1000000 {
            std::hint::black_box(Nonce::random());
        }
        println!("nonce {} ns", t.elapsed().as_nanos() / 1000000);
        let c = SystemClock::new();
        let t = Instant::now();
        for _ in 0..1000000 {
            std::hint::black_box(c.now());
        }
        println!("now {} ns", t.elapsed().as_nanos() / 1000000);
    });
}
