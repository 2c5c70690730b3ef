"""Pure core of JobMaster: model, wire format, state tables and every decision. No I/O, no clock, no randomness."""
