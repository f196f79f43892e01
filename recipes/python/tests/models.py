"""Models for the tests of the PyTorch backend, in plain ``torch.nn``."""

import torch
import torch.nn.functional as F
from torch import nn


def perceptron():
    return nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 16), nn.Tanh(), nn.Linear(16, 4))


class Layer(nn.Module):
    """A transformer layer."""

    def __init__(self, i, heads, rate, causal):
        super().__init__()
        self.heads, self.rate, self.causal = heads, rate, causal
        self.q, self.k, self.v, self.o = (nn.Linear(i, i) for _ in range(4))
        self.first, self.second = nn.LayerNorm(i), nn.LayerNorm(i)
        self.up, self.down, self.drop = nn.Linear(i, 2 * i), nn.Linear(2 * i, i), nn.Dropout(rate)

    def forward(self, x, mask):
        b, j, i = x.shape
        q, k, v = (f(x).view(b, j, self.heads, i // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        rate = self.rate if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, mask, rate, is_causal=self.causal)
        x = self.first(x + self.drop(self.o(y.transpose(1, 2).reshape(b, j, i))))
        return self.second(x + self.drop(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    """Embeddings, layers, a head that shares the table of words, and a loss."""

    def __init__(self, layers, i=16, heads=2, words=17, places=8, rate=0.0, causal=False):
        super().__init__()
        self.words, self.places = nn.Embedding(words, i, padding_idx=0), nn.Embedding(places, i)
        self.drop, self.norm = nn.Dropout(rate), nn.LayerNorm(i)
        self.layers = nn.ModuleList(Layer(i, heads, rate, causal) for _ in range(layers))

    def forward(self, words, labels, keeps=None):
        x = self.drop(self.norm(self.words(words) + self.places(torch.arange(words.shape[1]))))
        mask = None if keeps is None else keeps[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        scores = x @ self.words.weight.t()
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


class Fire(nn.Module):
    """The beginning of SqueezeNet."""

    def __init__(self):
        super().__init__()
        self.stem, self.squeeze = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 4, 1)
        self.one, self.three = nn.Conv2d(4, 6, 1), nn.Conv2d(4, 6, 3, padding=1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, ceil_mode=True)
        x = F.relu(self.squeeze(x))
        x = torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)
        return F.adaptive_avg_pool2d(F.avg_pool2d(x, 2, 1), 1).flatten(1)


class Residual(nn.Module):
    """A block of ResNet."""

    def __init__(self, channels=4):
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.first, self.second = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.second(self.two(F.relu(self.first(self.one(x))))))
