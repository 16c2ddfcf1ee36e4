"A tokenizer that reads backwards: each door reads it right, or refuses it in a sentence"
import pytest, torch
from fastformers.data.block import classifier_dls, lm_dls
from fastformers.data.packing import pack_tokens
import fastformers.papers.sentence_pairs # rows of two segments
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.testing import tiny_arch, tiny_choice, tiny_df, tiny_spans, tiny_tags, tiny_tok
from fastformers.text.store import TokenStore
from fastformers.text.encode import HFTokenizer
import fastformers.learner.generation
from test_contracts_common import gap, loud

def back(family='bert', **kwargs): return HFTokenizer(tiny_tok(family), backwards=True, **kwargs)
def language_model(family):
    torch.manual_seed(0)
    learn = lm_learner(lm_dls(tiny_df(), back(family).tok, bs=8, seq_len=48, device='cpu'), tiny_arch(family))
    loud(learn.model)
    learn.model.eval()
    return learn

def test_labels_with_an_order_of_their_own_are_refused():
    cols = dict(text_col=['question','context'], label_col=['answer_text','answer_start'])
    for df,kw in ((tiny_tags(),{}), (tiny_spans(),cols)):
        with pytest.raises(ValueError, match='read forwards, and this tokenizer reads backwards; pass HFTokenizer'): classifier_dls(df, back(), **kw)
        assert classifier_dls(df, HFTokenizer(back().tok, backwards=False), device='cpu', **kw)
    with pytest.raises(ValueError, match='reads forwards'): pack_tokens(back().encode_batch(tiny_df().text), back(), 64, 'segment-pair')

def test_candidates_are_turned_text_by_text():
    df = tiny_choice()
    def ids(tok): return [x for x,_ in classifier_dls(df, tok, text_col=['text','candidates'], task='choice', device='cpu').train_ds]
    special = torch.tensor(tiny_tok().all_special_ids)
    for a,b in zip(ids(tiny_tok()), ids(back())):
        ends = torch.isin(a.ids, special)
        assert torch.equal(ends, torch.isin(b.ids, special)) and torch.equal(a.sequence_starts, b.sequence_starts)
        runs = (ends.cumsum(0)[~ends])
        for k in runs.unique(): assert torch.equal(a.ids[~ends][runs==k], b.ids[~ends][runs==k].flip(0))

@pytest.mark.parametrize('family,verb', [('bert','fill_mask'), ('gpt2','generate')])
def test_verbs_that_write_text_are_refused(family, verb):
    learn = language_model(family)
    with pytest.raises(TypeError, match=f'`{verb}` reads forwards, this model was trained backwards'): getattr(learn, verb)('A [MASK] film')

def test_a_store_holds_turned_documents(tmp_path):
    tok,texts = back(),tiny_df().text.tolist()
    store = TokenStore.build(texts, tok, tmp_path/'s')
    assert [o.ids.tolist() for o in store]==[x.ids[1:-1].tolist() for x in tok.encode_batch(texts)]
    rows = [[x.tolist() for x,*_ in lm_dls(o, tok, seq_len=32, device='cpu').train_ds] for o in (store, texts)]
    assert rows[0]==rows[1]
