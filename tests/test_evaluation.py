"Loss for each byte of text, and an evaluation whose memory does not grow with the data"
import math
from types import SimpleNamespace
import pandas as pd, pytest, torch
import torch.nn.functional as F
from fastai.basics import Callback, set_seed
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedTokenizerFast
from fastformers.text.core import as_tokens
from fastformers.data.block import lm_dls
from fastformers.learner.core import lm_learner
from fastformers.learner.evaluate import evaluate
from fastformers.objectives.clm import CLM
from fastformers.objectives.mlm import MLM
from fastformers.objectives.metrics import NLLPerByte, byte_lengths
from fastformers.objectives.core import TokenLoss
from fastformers.testing import tiny_arch, tiny_df, tiny_styles, tiny_tok
from fastformers.text.tokenizer import extend_vocab

df = tiny_df()
def lm(family='bert', bs=8, seq_len=32, n=60, objective=None, **kwargs):
    set_seed(0)
    tok,rows = tiny_tok(family),pd.concat([df]*(-(-n//60))).iloc[:n]
    obj = objective or (CLM if tok.mask_token is None else MLM)(tok)
    return lm_learner(lm_dls(rows, tok, obj, seq_len=seq_len, bs=bs, device='cpu'), tiny_arch(family), drop_mult=0., **kwargs)
def validate(learn):
    with learn.no_bar(), learn.no_logging(): return dict(zip(['loss', *(m.name for m in learn.metrics)], learn.validate()))

# --- bytes

def counted(text, tok): ids = tok(text, add_special_tokens=False)['input_ids']; return int(byte_lengths(tok)[ids].sum()), tok.unk_token_id in ids and tok.unk_token_id!=tok.eos_token_id
def expected(text, tok):
    norm = tok.backend_tokenizer.normalizer
    return len(''.join((norm.normalize_str(text) if norm else text).split()).encode())

@pytest.mark.parametrize('style', list(tiny_styles))
def test_the_bytes_of_a_text_are_those_of_its_tokens(style):
    tok,n = tiny_tok(style),0
    for text in [*df.text, 'a', '', '  ', 'naïve café', 'x'*100_000, 'tabs\tand\nlines  ', 'the The THE 1999']:
        got,unknown = counted(text, tok)
        if unknown: assert got<=expected(text, tok)
        else: assert got==expected(text, tok), text; n += 1
    assert n>55, 'texts without unknown letters'

def fast(model, **parts):
    t = Tokenizer(model)
    for k,v in parts.items(): setattr(t, k, v)
    return PreTrainedTokenizerFast(tokenizer_object=t, unk_token='<unk>')
def table(tok): return {o:int(byte_lengths(tok)[i]) for o,i in tok.get_vocab().items()}

def test_bytes_that_stand_in_for_characters():
    vocab = {o:i for i,o in enumerate(['<unk>','▁','▁é','x','<0xE2>','<0x98>','<0x83>','<0x0A>','<0xZZ>'])}
    tok = fast(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token='<unk>'), normalizer=normalizers.Replace(' ','▁'), decoder=decoders.ByteFallback())
    assert table(tok)=={'<unk>':0, '▁':0, '▁é':2, 'x':1, '<0xE2>':1, '<0x98>':1, '<0x83>':1, '<0x0A>':0, '<0xZZ>':6}
    assert counted('x☃\nx', tok)==(5,False)

def test_ends_of_words():
    tok = fast(models.BPE(vocab={'<unk>':0,'a':1,'a</w>':2,'▁':3}, merges=[], unk_token='<unk>', end_of_word_suffix='</w>'), pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    assert table(tok)=={'<unk>':0, 'a':1, 'a</w>':1, '▁':3}, 'a ▁ that nothing makes a space is a letter'

def test_words_that_were_added():
    for kind in ('gpt2','bert','t5'):
        tok = tiny_tok(kind); before = byte_lengths(tok)
        new = extend_vocab(tok, ['größer','two words'], sep_token='<here>')
        n = byte_lengths(new)[new.convert_tokens_to_ids(['größer','two words','<here>'])].tolist()
        assert n==[8,8,0] and torch.equal(byte_lengths(new)[:len(before)], before)

# --- the metric

def plain_bytes(tok, i):
    "The bytes of token `i` as a person would count them"
    if i in tok.all_special_ids: return 0
    o = tok.convert_ids_to_tokens(i)
    if 'Ġ' in tok.get_vocab(): return len(o.replace('Ġ',''))          # a letter for each byte
    return len(o.removeprefix('##').replace('▁','').encode())

@pytest.mark.exact
@pytest.mark.parametrize('family', ['bert','gpt2','xlm-roberta','llama'])
def test_loss_per_byte_by_hand(family):
    learn = lm(family)
    got,loss,n,text = validate(learn),0.,0,0
    learn.model.eval()
    for x,y in learn.dls.valid:
        with torch.no_grad(): dense = learn.model.hf(**learn.model.model_inputs(x)).logits
        loss += float(F.cross_entropy(dense.flatten(0,1), y.as_subclass(torch.Tensor).flatten(), ignore_index=-100, reduction='sum'))
        text += sum(plain_bytes(tiny_tok(family), i) for i in y[y!=-100].tolist())
    assert got['nll_per_byte']==pytest.approx(loss/text, rel=1e-5)

@pytest.mark.parametrize('family', ['bert','gpt2','xlm-roberta'])
def test_loss_per_byte_does_not_depend_on_the_batch_size(family):
    learns = [lm(family, bs=bs) for bs in (1,4,7,100)]
    for o in learns[1:]: o.model.load_state_dict(learns[0].model.state_dict())
    figures = [validate(o)['nll_per_byte'] for o in learns]
    assert figures[1:]==pytest.approx(figures[:1]*3, rel=1e-5)

def test_rows_of_unequal_bytes_are_not_averaged():
    "A mean of batch means would be another number"
    learn = lm('bert', bs=1)
    parts = []
    class Each(Callback):
        order = 2000
        def after_batch(self):
            m = NLLPerByte(tiny_tok()); m.reset(); m.accumulate(self.learn); parts.append(m.value)
    with learn.no_bar(), learn.no_logging(): whole = learn.validate(cbs=Each())[3]
    assert abs(sum(parts)/len(parts)/whole-1)>1e-3

def test_what_has_no_byte_counts_as_loss():
    "The end of a text is predicted by a causal model, and no letter stands for it"
    tok = tiny_tok('gpt2')
    m,dls = NLLPerByte(tok),lm('gpt2').dls; m.reset()
    def batch(*y): return SimpleNamespace(dls=dls, pred=None, yb=(torch.tensor([y]),), loss=torch.tensor(3.))
    m.accumulate(batch(tok.eos_token_id, tok.convert_tokens_to_ids('a')))
    assert m.value==6.
    m.accumulate(batch(10**6, -100))
    assert m.value==9., 'an id that the tokenizer does not know'

def test_nothing_predicted():
    learn = lm('bert')
    learn.dls.valid.after_batch.fs[:] = [o if not isinstance(o, MLM) else Silent() for o in learn.dls.valid.after_batch.fs]
    with learn.no_bar(): metrics,score,weight = evaluate(learn)
    assert list(metrics)==['loss','accuracy','perplexity','nll_per_byte'] and all(map(math.isnan, metrics.values())) and not weight.any()

class Silent(MLM):
    "Nothing is predicted"
    def __init__(self): super().__init__(tiny_tok())
    def encodes(self, b): x = b[0]; return x.replace(predicted=torch.zeros_like(x.real)), torch.full_like(x.ids, -100)

def test_columns_of_the_recorder_and_of_measure():
    learn = lm('bert')
    with learn.no_bar(), learn.no_logging(): learn.fit(1)
    assert list(learn.recorder.metric_names)==['epoch','train_loss','valid_loss','accuracy','perplexity','nll_per_byte','time']
    assert len(learn.recorder.values[0])==5 and list(evaluate(learn)[0])==['loss','accuracy','perplexity','nll_per_byte']
    a,b = lm('bert'),lm('bert'); assert not {id(o) for o in a.metrics}&{id(o) for o in b.metrics}

# --- memory

class Memory(TorchDispatchMode):
    "What is alive, and the most logits in one tensor"
    def __init__(self, learn): super().__init__(); self.alive,self.own,self.n = WeakIdKeyDictionary(),{p.untyped_storage().data_ptr() for p in learn.model.parameters()},0; self.V = learn.model.config.vocab_size
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for o in tree_leaves(out):
            if not isinstance(o, torch.Tensor): continue
            s = o.untyped_storage()
            self.alive[s] = None
            if o.ndim and o.shape[-1]==self.V and s.data_ptr() not in self.own: self.n = max(self.n, o.numel())
        return out
    def bytes(self): return sum(o.nbytes() for o in self.alive)

class Sample(Callback):
    "Bytes alive after each batch of the last validation"
    order = 2000
    def __init__(self, memory): self.memory,self.seen,self.positions = memory,[],[] # lists, since `evaluate` runs a copy
    def before_validate(self): self.seen.clear(); self.positions.clear()
    def after_batch(self):
        if self.training: return
        self.seen.append(self.memory.bytes()); self.positions.append(len(self.xb[0])*int(as_tokens(self.xb[0]).predicted.sum(1).max()))

class KeepLogits(Callback):
    def before_validate(self): self.kept = []
    def after_pred(self): self.kept.append(self.pred.detach())

verbs = dict(validate=lambda o: o.validate(), fit=lambda o: o.fit(1, 1e-3), evaluate=evaluate)
def watched(verb, family='bert', *cbs):
    "(how much more is alive at the last batch than at an earlier one, in logits of one position of a batch; number of batches; most logits in one tensor; a whole batch's; the learner)"
    learn = lm(family, bs=4, n=120)
    memory,V = Memory(learn),learn.model.config.vocab_size
    sample = Sample(memory)
    with memory, learn.no_bar(), learn.no_logging(), learn.added_cbs([sample, *cbs]): verbs[verb](learn)
    return (max(sample.seen[2:])-min(sample.seen[2:]))/(4*4*V), len(sample.seen), memory.n, max(sample.positions)*V, learn

@pytest.mark.exact
@pytest.mark.parametrize('family', ['bert','gpt2'])
@pytest.mark.parametrize('verb', list(verbs))
def test_validation_keeps_no_logits(verb, family):
    grown,n,logits,most,learn = watched(verb, family)
    assert n>=8 and grown<max(int(x.predicted.sum(1).max()) for x,_ in learn.dls.valid), 'batches differ by less than the logits of one'
    if verb!='fit': assert logits==most, 'the largest is (bs, k, V)'

@pytest.mark.exact
def test_what_is_kept_would_be_seen():
    grown,n,*_ = watched('validate', 'bert', KeepLogits())
    assert grown>2*(n-3), 'some positions for each batch'
