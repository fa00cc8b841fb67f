"""linn-redact: what nobody should read is masked before it is stored."""
