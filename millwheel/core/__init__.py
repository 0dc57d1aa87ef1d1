"""What all rooms share: records, their encoding, time, names, addresses. It knows no pipeline."""
