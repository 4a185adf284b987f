# Source: HHTseng/video-classification#42
# Trap: 08.11

import torch
from torch import nn

torch.manual_seed(0)


class DecoderRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.LSTM = nn.LSTM(16, 32, 2)
        self.fc1 = nn.Linear(32, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x_RNN):
        RNN_out, _ = self.LSTM(x_RNN, None)  # fault
        x = self.fc1(RNN_out[:, -1, :]).relu()
        return self.fc2(x)


rnn_decoder = DecoderRNN()
optimizer = torch.optim.Adam(rnn_decoder.parameters(), lr=1e-3)
X = torch.randn(120, 7, 16)
y = torch.randint(0, 5, (120,))
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(X, y), batch_size=20, shuffle=True
)
for epoch in range(4):
    rnn_decoder.train()
    for batch_idx, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(rnn_decoder(a), b)
        loss.backward()
        optimizer.step()
