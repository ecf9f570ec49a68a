"""Stand-ins, builders of test data and Hypothesis strategies that several folders of tests share."""
