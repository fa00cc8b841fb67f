// Everything of the client.
#pragma once

#include <linn/batch.h>
#include <linn/client.h>
#include <linn/consumer.h>
#include <linn/error.h>
#include <linn/login.h>
#include <linn/producer.h>
#include <linn/record.h>
#include <linn/uuid.h>
