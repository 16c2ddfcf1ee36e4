"""A web service for a classifier: a list of texts in, labels and scores out

    pip install "fastformers[serve]"
    FASTFORMERS_MODEL=models/reviews uvicorn service:app --app-dir examples
    curl localhost:8000/predict -H 'content-type: application/json' -d '{"texts": ["Great sound."]}'

It has no password and reads a body of any size: on the internet, run it behind a proxy that has both.
"""
import os
from threading import Lock
from typing import Annotated
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from fastformers.inference.predictor import from_hf

max_texts,max_chars = 64,10_000
predictor = from_hf(os.environ['FASTFORMERS_MODEL'])
one_at_a_time = Lock() # each request may use all cores
app = FastAPI(title='A fastformers classifier')

class Texts(BaseModel):
    texts: Annotated[list[Annotated[str, Field(max_length=max_chars)]], Field(min_length=1, max_length=max_texts)]

@app.post('/predict')
def predict(body: Texts):
    "Label each of the texts"
    with one_at_a_time: return predictor(body.texts)

@app.exception_handler(RequestValidationError)
def refuse(request, e):
    where = ' '.join(map(str, e.errors()[0]['loc'][1:])) or 'body'
    said = f'expected {{"texts": [...]}} with 1 to {max_texts} texts of at most {max_chars:,} characters'
    return JSONResponse({'error':f"{said}; got {where}: {e.errors()[0]['msg'].lower()}"}, 422)

@app.exception_handler(ValueError)
def explain(request, e): return JSONResponse({'error':str(e)}, 422) # such as a classifier of pairs that got texts
