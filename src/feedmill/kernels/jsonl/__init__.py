"""Lines of JSON: judged, taken apart and put together as bytes."""
