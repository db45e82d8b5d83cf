"""Interim."""


def dataset_names():
    return (
        "deepscaler",
        "gsm8k",
        "math500",
        "aime24",
        "aime25",
        "amc",
        "amc23",
        "minerva_math",
        "olympiadbench",
        "additions",
        "additions_test",
    )
