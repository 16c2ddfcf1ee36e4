"Special tokens come from the template, never from a user's text; nothing is derived from the value of an id"
import pandas as pd, pytest, torch
from fastformers.learner.core import classifier_learner, lm_learner
from fastformers.text.tokenizer import ordinary_ids
from test_contracts_common import *

pytestmark = pytest.mark.exact

literals = '[SEP] [CLS] [MASK] [PAD] [UNK] <s> </s> <pad> <mask> <unk> <sep> <cls> <|endoftext|> <|begin_of_text|> <|end_of_text|>'.split()
spelt = [o for l in literals for o in (l, f'good {l} bad', f'good{l}bad', l+l)]

def specials(tok, x):
    "The special ids among the real tokens of `x`, those for unknown letters aside"
    hidden = set(tok.tok.all_special_ids) - ({tok.tok.unk_token_id} - {tok.tok.eos_token_id})
    return [i for i in x.ids[x.real].tolist() if i in hidden]

@pytest.mark.parametrize('style', styles)
def test_spelt_specials_stay_text(style):
    tok = tokenizer(style)
    names = set(tok.tok.all_special_tokens)
    assert len(names & set(literals))==len(names) # the list above covers this style
    plain,pair = specials(tok, tok('word')), specials(tok, tok(('word','word')))
    for t,x in zip(spelt, tok.encode_batch(spelt)): assert specials(tok, x)==plain, t
    for t,x in zip(spelt, tok.encode_batch([*zip(spelt, spelt[::-1])])): assert specials(tok, x)==pair, t
    if style in ('roberta','gpt2','llama'): # byte-level: nothing is lost either
        for t in spelt: assert str(tok.decode(tok(t)))==t

@pytest.fixture(scope='module', params=styles)
def learned(request):
    "(HFTokenizer, learner) on texts that spell special tokens"
    family = request.param.replace('_','-')
    df = pd.DataFrame({'text':spelt*2, 'label':['a','b']*len(spelt), 'is_valid':[False]*len(spelt)+[True]*len(spelt)})
    dls = classifier_dls(df, tiny_tok(request.param), bs=16)
    learn = quiet(classifier_learner(dls, tiny_arch(family)))
    return dls.train_ds.tls[0].tfms.fs[-1], learn

def test_spelt_specials_stay_text_in_classifier_dls(learned):
    tok,learn = learned
    plain,n = specials(tok, tok('word')), 0
    for dl in learn.dls.loaders:
        for x,_ in dl:
            for r in x: assert specials(tok, r)==plain; n += 1
    assert n==2*len(spelt)

def test_spelt_specials_stay_text_in_predict(learned):
    tok,learn = learned
    seen,plain = [],specials(tok, tok('word'))
    hook = learn.model.register_forward_pre_hook(lambda m, args: seen.append(args[0].as_subclass(TensorTokens)))
    try: 
        for t in ('[SEP]', 'good [MASK] bad', 'good</s>bad', '<pad>', '<s>', '<|endoftext|>'): learn.predict(t)
    finally: hook.remove()
    assert len(seen)==6 and all(specials(tok, x[0])==plain for x in seen)

@pytest.mark.parametrize('style', [o for o in styles if tiny_tok(o).mask_token])
def test_specials_of_the_template_are_never_predicted_or_drawn(style):
    obj = MLM(tokenizer(style), p=1., replace=(0.,1.))
    x = batch(obj.tfm, spelt+[(a,b) for a,b in zip(spelt, spelt[::-1])])
    new,y = obj((x,), split_idx=0)
    kept = torch.isin(x.ids, torch.tensor(tiny_tok(style).all_special_ids))
    assert torch.equal(new.ids[kept|~x.real], x.ids[kept|~x.real]) and not new.predicted[kept|~x.real].any()
    assert torch.isin(new.ids[new.predicted], ordinary_ids(obj.tok)).all() and bool((y[~new.predicted]==-100).all())

# ---- gpt2: pad == eos == unk, id 0 is an ordinary token

def rows_with(i):
    "Texts as ready ids in which the id `i` occurs first, within and last"
    a,b = (tokenizer('gpt2')(t).ids.tolist() for t in (texts[3], texts[1]))
    return [[i,*b], [*b,i,*b], [*b,i], [i], a+a]

def padded(rows, side):
    tok = tokenizer('gpt2', side)
    assert tok.tok.pad_token_id==tok.tok.eos_token_id
    return torch.stack([o for o, in PadTokens(tok)([(tok(r),) for r in rows])]).as_subclass(TensorTokens)

@torch.no_grad()
@pytest.mark.parametrize('side', ['right','left'])
@pytest.mark.parametrize('what', ['eos','id 0'])
def test_an_id_within_a_text_is_attended_even_if_padding_is_made_of_it(side, what):
    i,m,lm = tiny_tok('gpt2').eos_token_id if what=='eos' else 0, classifier('gpt2'), language_model('gpt2')
    rows = rows_with(i)
    x = padded(rows, side)
    assert x.attention_mask.sum(1).tolist()==list(map(len, rows))
    assert x.ids[x.real].tolist()==[o for r in rows for o in r]
    both,logits = m(x),lm(all_predicted(x))
    for r,p,l in zip(rows, both, logits):
        alone = TensorTokens(torch.tensor([r]))
        assert gap(m(alone)[0], p)<1e-5 and gap(lm(all_predicted(alone))[0], l[:len(r)])<1e-5
    without = [[o for o in r if o!=i] for r in rows[:3]]
    assert gap(m(padded(without, side)), both[:3])>1e-3 # the token counts

@pytest.mark.parametrize('side', ['right','left'])
@pytest.mark.parametrize('what', ['eos','id 0'])
def test_clm_predicts_eos_and_id_0_where_they_are_text_and_nowhere_else(side, what):
    i = tiny_tok('gpt2').eos_token_id if what=='eos' else 0
    rows = rows_with(i)
    x,y = CLM(tiny_tok('gpt2'))((padded(rows, side),), split_idx=1)
    assert [r[r!=-100].tolist() for r in y]==[r[1:] for r in rows]

def test_id_0_is_masked_like_any_other():
    tok = tiny_tok('gpt2'); tok.add_special_tokens({'mask_token':'<mask>'})
    x,y = MLM(tok, p=1.)((TensorTokens(torch.tensor([[0,5,0,7]])),), split_idx=0)
    assert y.tolist()==[[0,5,0,7]]
    assert 0 in ordinary_ids(tok) and 0 in ordinary_ids(tiny_tok('llama'))
