"What is in a batch, and what else is in it, changes no prediction; `x` is what the family's own tokenizer gives"
import pytest, torch
from test_contracts_common import *

pytestmark = pytest.mark.exact

short = [texts[0], texts[1], 'Fresh fish']
long = [' '.join(texts[i:i+4]) for i in (3, 9)]
cases = [(f,None) for f in families] + [('gpt2','left'), ('llama','left'), ('openai-gpt','left'), ('xlnet','right')]

@torch.no_grad()
@pytest.mark.parametrize('family,side', cases)
def test_padding_and_company_change_no_logits(family, side):
    m,tok = language_model(family),tokenizer(family, side)
    x = batch(tok, short+long)
    assert x.attention_mask[:3].min()==0 and (x.attention_mask[0,0]==0)==((side or tok.tok.padding_side)=='left')
    both = m(all_predicted(x))
    for i,t in enumerate(short):
        alone = m(all_predicted(batch(tok, [t])))[0]
        assert gap(alone, both[i,:len(alone)])<1e-5
        company = m(all_predicted(batch(tok, [texts[7], t])))[1]
        assert gap(alone, company[:len(alone)])<1e-5
    assert gap(both[0,0], both[1,0])>1e-3 or family in causal # the model does tell texts apart

@torch.no_grad()
@pytest.mark.parametrize('family,side', cases)
def test_padding_and_company_change_no_class_of_a_pair(family, side):
    m,tok = classifier(family),tokenizer(family, side)
    few,more = [('Fresh fish','Cold'),('Soft','A bed')],[pairs[0],pairs[5]]
    both = m(batch(tok, few+more))
    for i,t in enumerate(few):
        assert gap(m(batch(tok, [t])), both[i:i+1])<1e-5
        assert gap(m(batch(tok, [pairs[3], t]))[1:], both[i:i+1])<1e-5
    assert gap(both[0], both[1])>1e-3

@pytest.mark.parametrize('family', families)
@pytest.mark.parametrize('kind', ['texts','pairs'])
def test_x_is_what_the_hugging_face_tokenizer_gives(family, kind):
    tok,items = tokenizer(family),(short+long if kind=='texts' else pairs[:5])
    x,args = batch(tok, items),([items] if kind=='texts' else list(map(list, zip(*items))))
    theirs = tok.tok(*args, padding=True, return_tensors='pt', return_token_type_ids=True)
    for mine,key in ((x.ids,'input_ids'), (x.attention_mask,'attention_mask'), (x.segment_ids,'token_type_ids')): assert torch.equal(mine, theirs[key]), key
