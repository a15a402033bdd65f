//! A durable queue of single messages, for callers that ask in batches.

use bytes::Bytes;

use super::load::Durable;
use crate::cycles::Contestant;
use crate::measure::Result;

/// Takes batches apart.
#[derive(Debug, Clone)]
pub(crate) struct OneByOne<D>(pub(crate) D);

impl<D: Durable> Contestant for OneByOne<D> {
    type Receipt = D::Receipt;

    async fn send(&self, bodies: Vec<Bytes>) -> Result<()> {
        for body in bodies {
            self.0.send(body).await?;
        }
        Ok(())
    }

    async fn receive(&self, _: usize) -> Result<Vec<(Bytes, D::Receipt)>> {
        Ok(vec![self.0.receive().await?])
    }

    async fn acknowledge(&self, receipts: Vec<D::Receipt>) -> Result<()> {
        for receipt in receipts {
            self.0.acknowledge(receipt).await?;
        }
        Ok(())
    }

    async fn close(self, left: u64) -> Result<()> {
        self.0.close(left).await
    }
}
