"Vectors of texts, and pairs that are read as two sequences: the same alone and in a batch, in training and after saving"
import json
from functools import partial
import pandas as pd, pytest, torch
from fastai.data.all import CategoryBlock, ColReader, ColSplitter, DataBlock
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer
from fastformers.callback.auxiliary_lm import AuxiliaryLM
from fastformers.cli import main
from fastformers.data.block import HFTextBlock, tokenizer_of
from fastformers.hub import resolve_arch
from fastformers.inference.predictor import from_hf
from fastformers.inference.stage_json import read_stage
from fastformers.learner.core import classifier_learner
from fastformers.models.heads import PoolingHead
from fastformers.papers.lstm_head import LSTMHead
from fastformers.ulmfit.stage import fine_tune_classifier
from test_contracts_common import *

pytestmark = pytest.mark.exact

both = ['text_a','text_b']
odd = pairs[:7]+[('',''), ('a',''), ('a','b '*300), ('b '*300,'a')]
ways = [('siamese','concat'), ('siamese','mean'), ('both_orders','concat'), ('both_orders','max')]

def learner(family, pairing, pool='concat', label='label', **kwargs):
    torch.manual_seed(0)
    df = tiny_pairs().assign(score=lambda o: o.text_a.str.len()/100)
    dls = classifier_dls(df, tiny_tok(family), text_col=both, label_col=label, bs=8, max_len=100, pairing=pairing, device='cpu')
    return quiet(classifier_learner(dls, tiny_arch(family), pool=pool, **kwargs))

def wanted(learn, items): return learn.get_preds(dl=learn.dls.test_dl(items))[0]

# ---- pairs as two sequences

cases = [(f,*w,l) for f in ('bert','gpt2') for w in ways for l in ('label','score')] + [(f,*w,'label') for f in ('roberta','xlnet','modernbert') for w in ways[::2]]

@pytest.mark.parametrize('family,pairing,pool,label', cases)
def test_a_saved_classifier_predicts_the_same(tmp_path, family, pairing, pool, label):
    learn = learner(family, pairing, pool, label)
    loud(learn.model, by=4.)
    want = wanted(learn, odd)
    assert want.std(0).max()>1e-3, 'pairs are told apart'
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    for bs in (64,1,3): assert gap(p.scores(odd, bs=bs), want)<1e-5
    assert p.tok.pairing==pairing and json.loads((tmp_path/'o/classifier.json').read_text())['pairing']==pairing
    again = classifier_learner(learn.dls, tmp_path/'o', pool=pool)
    assert gap(wanted(again, odd), want)<1e-5, 'the head is kept'
    turned = p.scores([o[::-1] for o in odd])
    symmetric = pairing=='both_orders' or learn.model.head.pairing=='cosine'
    assert (gap(turned, want)<1e-6*max(1, want.abs().max()))==symmetric

@pytest.mark.parametrize('family', 'bert gpt2'.split())
def test_each_text_is_read_by_itself(family):
    "`[u, v, |u-v|]` of texts that were encoded and read one by one"
    learn = learner(family, 'siamese')
    model,tok = loud(learn.model, by=4.),HFTokenizer(tiny_tok(family), 100)
    for pair in odd:
        with torch.no_grad():
            u,v = (model.head.pool(model.body(**model.model_inputs(x))[0], x.real) for x in (tok(o)[None] for o in pair))
            want = model.head.layers(torch.cat([u, v, (u-v).abs()], 1))
            x = tokenizer_of(learn.dls)(pair)[None]
            assert gap(model(x), want)<1e-5

def test_heads_that_read_two_texts_as_one_are_refused():
    class OwnHead(torch.nn.Module):
        def __init__(self, nf, n_out): super().__init__(); self.lin = torch.nn.Linear(nf, n_out)
        def forward(self, h, mask): return self.lin(h[:,0])
    for pairing in ('siamese','both_orders'):
        for head in (LSTMHead, PoolingHead, OwnHead):
            with pytest.raises(ValueError, match=f"Head reads the texts of pairing='{pairing}' as one; leave out `head`"): learner('bert', pairing, head=head)
        assert learner('bert', pairing, head=partial(PoolingHead, pairing=pairing))

def test_a_pair_is_one_item():
    df = tiny_pairs()
    for pairing in ('together','siamese'):
        learn = learner('bert', pairing)
        want = learn.predict(pairs[0])[2]
        assert gap(want, learn.predict([*pairs[0]])[2])<1e-6 and gap(want, learn.predict(df.iloc[0])[2])<1e-6
        assert gap(want, learn.predict(tokenizer_of(learn.dls)(pairs[0]))[2])<1e-6
        for f in (learn.predict, lambda o: learn.get_preds(dl=learn.dls.test_dl([o]))):
            with pytest.raises(TypeError, match='trained on pairs of texts, got .A man.*pass the two as one item'): f(pairs[0][0])
        with pytest.raises(TypeError, match='a pair of texts is one item: predict'): learn.predict(*pairs[0])
    single = quiet(classifier_learner(classifier_dls(tiny_df(), tiny_tok(), bs=8, device='cpu'), tiny_arch('bert')))
    with pytest.raises(TypeError, match='trained on single texts'): single.predict(pairs[0])

def test_the_body_learns_from_both_sequences():
    for pairing,pool in ways:
        learn = learner('bert', pairing, pool, 'score')
        x,y = learn.dls.train.one_batch()
        h = learn.model.states(x)
        h.retain_grad()
        learn.model.eval()
        with torch.autocast('cpu', enabled=False): learn.model.head(h, x.real, x.sequence_starts).sum().backward()
        second = x.sequence_starts.cumsum(1)>0
        assert all((h.grad*(m & x.real)[...,None]).abs().sum((1,2)).min()>0 for m in (~second, second))

def test_an_auxiliary_lm():
    for pairing in ('siamese','both_orders'):
        learn = learner('bert', pairing, cbs=AuxiliaryLM(.5))
        with learn.no_bar(): learn.fit(1, 1e-3)
        assert torch.isfinite(torch.tensor(learn.recorder.values[-1][0]))

def test_rows_longer_than_the_model_with_sequences_that_fit():
    df = tiny_pairs().assign(text_a='word '*400, text_b=lambda o: o.text_b+' word'*400)
    for pairing in ('siamese','both_orders'):
        dls = classifier_dls(df, HFTokenizer(tiny_tok('bert'), 500), text_col=both, pairing=pairing, bs=2, device='cpu')
        assert dls.train.lengths.max()>512
        assert wanted(quiet(classifier_learner(dls, tiny_arch('bert'))), [('a','b')]).shape==(1,2)

def test_a_data_block(tmp_path):
    block = DataBlock(blocks=(HFTextBlock(tiny_tok('bert'), pairing='siamese'), CategoryBlock), get_x=ColReader(both), get_y=ColReader('label'), splitter=ColSplitter())
    learn = quiet(classifier_learner(block.dataloaders(tiny_pairs(), bs=4, device='cpu'), tiny_arch('bert')))
    assert learn.model.head.pairing=='siamese'
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    assert gap(p.scores(pairs[:3]), torch.stack([learn.predict(o)[2] for o in pairs[:3]]))<1e-5

def test_the_stage_and_the_command(tmp_path):
    args = dict(text_col=both, bs=8, epochs=1, pairing='both_orders')
    fine_tune_classifier(tiny_pairs(), tiny_arch('bert'), tmp_path/'s', tok=tiny_tok('bert'), **args)
    assert read_stage(tmp_path/'s')['recipe']['pairing']=='both_orders' and from_hf(tmp_path/'s').tok.pairing=='both_orders'
    tiny_pairs().to_csv(tmp_path/'pairs.csv', index=False)
    argv = ['classify', tmp_path/'pairs.csv', '--text-col', 'text_a,text_b', '--arch', tmp_path/'s', '--output', tmp_path/'c', '--pairing', 'siamese', '--epochs', 1, '--bs', 8]
    assert not main([*map(str, argv)])
    assert from_hf(tmp_path/'c').model.head.pairing=='products'

def test_a_directory_from_before_has_no_pairing(tmp_path):
    path = learner('bert', 'together').to_hf(tmp_path/'o')
    want = from_hf(path, device='cpu').scores(odd)
    facts = json.loads((path/'classifier.json').read_text())
    assert facts.pop('pairing')=='together' and 'pair' not in facts['head']
    (path/'classifier.json').write_text(json.dumps(facts))
    assert torch.equal(from_hf(path, device='cpu').scores(odd), want)

# ---- vectors

def published(texts, max_len=256):
    "The computation of MiniLM's model card: mean over the attention mask, length 1; padded batches in the order of the texts"
    path = resolve_arch('minilm')
    tok,net = AutoTokenizer.from_pretrained(path),AutoModel.from_pretrained(path).eval()
    for i in range(0, len(texts), 20):
        enc = tok(texts[i:i+20], padding=True, truncation=True, max_length=max_len, return_tensors='pt')
        mask = enc.attention_mask[...,None].float()
        with torch.no_grad(): h = net(**enc)[0]
        yield normalize((h*mask).sum(1)/mask.sum(1).clamp(min=1e-9), dim=1)

def test_two_hundred_real_texts(data_dir):
    short,long = pd.read_csv(data_dir/'stsb/dev.csv', keep_default_na=False),pd.read_csv(data_dir/'imdb/train.csv.gz', nrows=50, keep_default_na=False)
    some = [*short.text_a[:80], *short.text_b[:70], *long.text]
    encoder = from_hf('minilm', device='cpu')
    lengths = [*map(len, encoder.tok.encode_batch(some))]
    assert len(some)==200 and lengths.count(256)>5, 'some are cut'
    assert gap(encoder.vectors(some), torch.cat([*published(some)]))<1e-5

@pytest.mark.parametrize('family', 'bert roberta gpt2 xlnet t5 fnet'.split())
def test_vectors_do_not_depend_on_the_batch(tmp_path, family):
    torch.manual_seed(0)
    body = load_body(tiny_arch(family))[0]
    loud(body, by=4.).save_pretrained(tmp_path); tiny_tok('t5' if family=='t5' else family).save_pretrained(tmp_path)
    p,some = from_hf(tmp_path, device='cpu'),[o for o in texts if 'is' in o.split()][:5]+['', 'one']
    got = p.vectors(some)
    assert gap(got, torch.cat([p.vectors(o) for o in some]))<1e-5 and got.std(0).max()>1e-3

def test_vectors_of_a_classifier_are_those_of_its_body(tmp_path):
    learn = learner('bert', 'siamese', 'mean', 'score')
    loud(learn.model, by=4.)
    p = from_hf(learn.to_hf(tmp_path/'o'), device='cpu')
    u,v = p.vectors([o[0] for o in odd]),p.vectors([o[1] for o in odd])
    mean,std = (o[0] for o in learn.model.task.target_scale)
    assert gap(learn.model.head.layers((4*(u*v).sum(1)-2)[:,None])*std+mean, p.scores(odd))<1e-4
    with pytest.raises(TypeError, match='single texts'): p.vectors(pairs[:2])
