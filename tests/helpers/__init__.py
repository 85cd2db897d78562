"""What tests share: data sets, golden data, programs that are killed, stand-ins."""
