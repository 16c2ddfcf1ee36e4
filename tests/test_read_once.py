"A table is read once: its columns, task, labels and texts, whatever asks for them"
from collections import Counter
import pytest
from fastformers.data import block, labels, rows
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.inference.predictor import from_hf
from fastformers.label.choose_texts import choose_texts
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.learner import evaluate
from fastformers.inference import baseline
from fastformers.testing import tiny_arch, tiny_pairs, tiny_tok
from fastformers.text import encode, tokenizer
from fastformers.text.corpora import intents
from fastformers.text.encode import HFTokenizer
from fastformers.text.tokenizer import PROMPTS
from fastformers.ulmfit.stage import fine_tune_classifier

@pytest.fixture
def counts(monkeypatch):
    "Count calls of the readers, texts that are tokenized, and fits of the linear model"
    res,texts = Counter(),Counter()
    def counted(name, f):
        def call(*args, **kwargs):
            res[name] += 1
            return f(*args, **kwargs)
        return call
    for name in ('read_labels','find_task','check_columns'):
        for m in (block, labels, rows, evaluate):
            if hasattr(m, name) and not (m is labels and name!='check_columns'): monkeypatch.setattr(m, name, counted(name, getattr(m, name)))
    encode = HFTokenizer._sequences
    def sequences(self, many):
        texts.update(many)
        return encode(self, many)
    monkeypatch.setattr(HFTokenizer, '_sequences', sequences)
    monkeypatch.setattr(baseline.TextBaseline, 'fit', counted('linear model', baseline.TextBaseline.fit))
    return res,texts

@pytest.mark.parametrize('refit', [False,True])
def test_a_stage_reads_its_table_once(counts, refit):
    res,texts = counts
    df = intents(120)
    fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok('bert'), epochs=1, refit=refit, precision='fp32')
    assert res==dict(read_labels=1, find_task=1, check_columns=1, **{'linear model':1})
    assert texts==Counter(df.text)

def test_long_texts_are_tokenized_once(counts):
    df = intents(60)
    df.loc[::3,'text'] = df.text[::3]*30
    fine_tune_classifier(df, tiny_arch('bert'), tok=tiny_tok('bert'), epochs=1, refit=True, precision='fp32')
    assert counts[1]==Counter(df.text)

def test_a_word_of_a_column_is_looked_at_at_the_door(counts):
    with pytest.raises(ValueError, match='columns are text, label'): fine_tune_classifier(intents(60)[['text','label']], tiny_arch('bert'), tok=tiny_tok('bert'), label_col='sentiment')
    assert not counts[1]

def test_a_tokenizer_is_made_once(tmp_path, monkeypatch):
    "With 250,000 tokens each load and each copy takes seconds"
    df,path = intents(60),tmp_path/'lm'
    lm_learner(lm_dls(df, tiny_tok('xlm-roberta'), device='cpu'), tiny_arch('xlm-roberta')).save_encoder(path)
    (path/PROMPTS).write_text('{"prompts": {"query": "query: ", "passage": "passage: "}}')
    loads,load = [],tokenizer.AutoTokenizer.from_pretrained
    monkeypatch.setattr(tokenizer.AutoTokenizer, 'from_pretrained', lambda path, **kw: loads.append(path) or load(path, **kw))
    doors = dict(stage=lambda: fine_tune_classifier(df, path, tmp_path/'cl', epochs=0, precision='fp32'),
                 learner=lambda: classifier_learner(classifier_dls(df, path, device='cpu'), path),
                 classifier=lambda: from_hf(tmp_path/'cl')(['a text']), vectors=lambda: from_hf(path).vectors(['a text']),
                 choose=lambda: choose_texts(df.text, 5, arch=path))
    for k,f in doors.items():
        loads.clear(); encode._without.cache_clear()
        f()
        assert len(loads)==1 and encode._without.cache_info().misses==1, k
