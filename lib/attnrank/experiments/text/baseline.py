"""What no attention is needed for: TF-IDF with logistic regression."""

from __future__ import annotations

import re

from attnrank import _check, data
from attnrank._optional import require
from attnrank.sweep import Setting

#: What `pre_tokenizers.Whitespace` makes of a text: runs of word characters, and runs of punctuation.
PIECE = re.compile(r"\w+|[^\w\s]+")


def text_baseline(dataset: str, length: int, ngrams: int) -> Setting:
    """Test accuracy of logistic regression on TF-IDF of the words, and of runs of up to ``ngrams`` of them.

    Texts are cut to their first ``length`` words and signs, as the word-level tokenizer of the Transformers cuts them,
    0 leaves them whole. Terms that occur in one text only are left out; 1 + log of a count; otherwise the defaults of
    scikit-learn, C = 1 included: nothing is tuned.
    """
    until = _check.integer("length", length, minimum=0) or None
    features = require("sklearn.feature_extraction.text", "data")
    vectors = features.TfidfVectorizer(
        tokenizer=str.split, token_pattern=None, lowercase=False, sublinear_tf=True, min_df=2,
        ngram_range=(1, _check.integer("ngrams", ngrams, minimum=1)),
    )  # fmt: skip
    pieces = {}
    labels = {}
    for split in ("train", "test"):
        texts, labels[split] = data.texts(dataset, split)
        cut = (PIECE.findall(text.replace("<br />", " ").lower())[:until] for text in texts)
        pieces[split] = [" ".join(words) for words in cut]
    model = require("sklearn.linear_model", "data").LogisticRegression(max_iter=1000)
    model.fit(vectors.fit_transform(pieces["train"]), labels["train"].numpy())
    right = model.predict(vectors.transform(pieces["test"])) == labels["test"].numpy()
    return {"terms": len(vectors.vocabulary_), "accuracy": float(right.mean())}
