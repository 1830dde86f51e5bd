"""Rules of the admission webhook: denials, warnings and the AdmissionReview format. Pure functions."""
